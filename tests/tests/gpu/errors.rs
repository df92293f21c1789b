//! Every error of the CUDA engine, and its message.

use std::process::Command;

use cudarc::driver::{CudaContext, DevicePtr, result};
use sgemm_bi_core::cuda::{CudaEngine, CudaOperands, DeviceSlice, DeviceSliceMut};
use sgemm_bi_core::{BiasGradient, Dtype, Error, Gemm, Shape, TensorCoreModel, Tier, View};
use sgemm_bi_tests::cuda;

const SQUARE: Shape = Shape { m: 8, k: 8, n: 8 };

#[test]
fn without_a_gpu_the_error_says_what_is_missing() {
    match CudaEngine::new(0) {
        Ok(_) => println!("skipped: there is a GPU"),
        Err(Error::NoDriver { looked }) => assert!(looked.contains("cuda"), "{looked}"),
        Err(error @ (Error::NoDevice { .. } | Error::Driver { .. })) => println!("{error}"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn an_ordinal_that_is_not_there() {
    if cuda::engine().is_none() {
        return;
    }
    match CudaEngine::new(1000) {
        Err(Error::NoDevice {
            ordinal: 1000,
            count,
        }) => assert!(count > 0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn descriptions_that_do_not_fit_their_operands() {
    let Some(engine) = cuda::engine() else { return };
    let stream = engine.stream();
    let memory = |len| stream.alloc_zeros::<f32>(len).expect("memory");
    let (whole, short, mut out) = (memory(64), memory(63), memory(64));
    let half = stream.alloc_zeros::<half::f16>(64).expect("memory");
    let gemm = Gemm::matmul(SQUARE, Dtype::F32);
    let mut fails = |gemm: &Gemm, lhs: DeviceSlice<'_>, bias: bool| {
        let mut operands = CudaOperands::new(lhs, &whole, &mut out);
        if bias {
            operands = operands.with_bias(&whole);
        }
        engine.gemm(gemm, operands).unwrap_err().to_string()
    };
    assert_eq!(
        fails(&gemm, (&short).into(), false),
        "matmul: lhs is too short: its view addresses 64 elements, the slice has 63"
    );
    assert_eq!(
        fails(&gemm, (&half).into(), false),
        "matmul: lhs has the wrong dtype: expected f32, got f16"
    );
    assert_eq!(
        fails(&gemm, (&whole).into(), true),
        "matmul: bias: expected none, got a bias"
    );
    let overlapping = View {
        offset: 0,
        row_stride: 7,
        col_stride: 1,
    };
    let dense = View::row_major(8);
    let gemm = gemm.with_views(dense, dense, overlapping);
    assert!(fails(&gemm, (&whole).into(), false).contains("out may overlap itself"));
    let problem = BiasGradient::new(8, 8, Dtype::F32);
    let error = engine
        .bias_gradient(&problem, &whole, &mut out)
        .unwrap_err();
    let expected = "bias gradient: db has the wrong length: expected 8 elements, got 64";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_tier_that_the_engine_does_not_have() {
    let Some(engine) = cuda::engine() else { return };
    let stream = engine.stream();
    let memory = || stream.alloc_zeros::<half::bf16>(64).expect("memory");
    let (a, b, mut c) = (memory(), memory(), memory());
    let tier = Tier::TensorCore(TensorCoreModel::Hopper);
    let gemm = Gemm::matmul(SQUARE, Dtype::BF16).with_tier(tier);
    let error = engine
        .gemm(&gemm, CudaOperands::new(&a, &b, &mut c))
        .unwrap_err();
    let expected = "matmul: the CUDA engine has no tensor-core (Hopper) tier for bf16 operands";
    assert_eq!(error.to_string(), expected);
}

/// The error of a product whose first operand is `len` f32 elements at an address.
fn raw(engine: &CudaEngine, address: u64, len: usize) -> Result<(), Error> {
    let stream = engine.stream();
    let b = stream.alloc_zeros::<f32>(64).expect("memory");
    let mut c = stream.alloc_zeros::<f32>(64).expect("memory");
    // SAFETY: the memory is used by this test alone, where it is device memory at all.
    let lhs = unsafe { DeviceSlice::from_raw(address, len, Dtype::F32) };
    let gemm = Gemm::matmul(SQUARE, Dtype::F32);
    let done = engine.gemm(&gemm, CudaOperands::new(lhs, &b, &mut c));
    stream.synchronize().expect("run");
    done
}

#[test]
fn addresses_that_are_not_device_memory() {
    let Some(engine) = cuda::engine() else { return };
    let pageable = vec![0.0f32; 64];
    let address = pageable.as_ptr() as u64;
    match raw(&engine, address, 64) {
        Err(Error::NotDeviceMemory {
            op,
            argument,
            address: named,
            ..
        }) => {
            assert_eq!((op, argument, named), ("matmul", "lhs", address));
        }
        other => panic!("{other:?}"),
    }
    // SAFETY: it is written by no one.
    let pinned = unsafe { engine.context().alloc_pinned::<f32>(64) }.expect("memory");
    let address = pinned.as_ptr().expect("there is one") as u64;
    match raw(&engine, address, 64) {
        Err(Error::NotDeviceMemory {
            got: "host memory", ..
        }) => {}
        other => panic!("{other:?}"),
    }
    match raw(&engine, 0, 64) {
        Err(Error::NotDeviceMemory { address: 0, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn allocations_that_end_too_early_and_odd_addresses() {
    let Some(engine) = cuda::engine() else { return };
    engine.context().bind_to_thread().expect("bound");
    let bytes = 1 << 20;
    // SAFETY: used and released here alone.
    let address = unsafe { result::malloc_sync(bytes) }.expect("memory");
    assert!(raw(&engine, address, bytes / 4).is_ok());
    assert!(raw(&engine, address + 4, bytes / 4 - 1).is_ok());
    match raw(&engine, address + 4, bytes / 4) {
        Err(Error::AllocationTooSmall {
            op,
            argument,
            expected,
            got,
        }) => {
            assert_eq!((op, argument), ("matmul", "lhs"));
            assert_eq!((expected, got), (bytes as u64, bytes as u64 - 4));
        }
        other => panic!("{other:?}"),
    }
    match raw(&engine, address + 2, 64) {
        Err(Error::Misaligned {
            dtype: Dtype::F32, ..
        }) => {}
        other => panic!("{other:?}"),
    }
    match raw(&engine, address, usize::MAX / 2) {
        Err(Error::SizeOverflow {
            argument: "lhs", ..
        }) => {}
        other => panic!("{other:?}"),
    }
    // SAFETY: every launch has run.
    unsafe { result::free_sync(address) }.expect("released");
    // Memory of the stream's pool, too.
    let pooled = engine.stream().alloc_zeros::<f32>(64).expect("memory");
    let address = pooled.device_ptr(engine.stream()).0;
    assert!(raw(&engine, address, 64).is_ok());
    match raw(&engine, address, 1 << 38) {
        Err(Error::AllocationTooSmall { .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn raw_memory_of_no_elements_may_be_anywhere() {
    let Some(engine) = cuda::engine() else { return };
    let gemm = Gemm::matmul(Shape { m: 0, k: 8, n: 8 }, Dtype::F32);
    // SAFETY: there is no element.
    let (lhs, rhs, out) = unsafe {
        (
            DeviceSlice::from_raw(0, 0, Dtype::F32),
            DeviceSlice::from_raw(0, 0, Dtype::F32),
            DeviceSliceMut::from_raw(0, 0, Dtype::F32),
        )
    };
    engine
        .gemm(&gemm, CudaOperands::new(lhs, rhs, out))
        .expect("nothing to do");
}

#[test]
fn memory_of_another_gpu() {
    let Some(engine) = cuda::engine() else { return };
    if CudaContext::device_count().expect("known") < 2 {
        println!("skipped: there is one GPU");
        return;
    }
    let other = CudaEngine::new(1).expect("the second GPU");
    let memory = |engine: &CudaEngine| engine.stream().alloc_zeros::<f32>(64).expect("memory");
    let (there, here, mut out) = (memory(&other), memory(&engine), memory(&engine));
    other.stream().synchronize().expect("run");
    let gemm = Gemm::matmul(SQUARE, Dtype::F32);
    match engine.gemm(&gemm, CudaOperands::new(&there, &here, &mut out)) {
        Err(Error::WrongDevice {
            argument: "lhs",
            expected: 0,
            got: 1,
            ..
        }) => {}
        other => panic!("{other:?}"),
    }
    let address = there.device_ptr(other.stream()).0;
    match raw(&engine, address, 64) {
        Err(Error::WrongDevice {
            expected: 0,
            got: 1,
            ..
        }) => {}
        other => panic!("{other:?}"),
    }
}

/// Runs this file's `one_product` in a process with other variables, and gives what it printed.
fn elsewhere(variables: &[(&str, &str)]) -> String {
    let this = std::env::current_exe().expect("a test knows its file");
    let child = ["--exact", "errors::one_product", "--ignored", "--nocapture"];
    let mut command = Command::new(this);
    let output = command.args(child).envs(variables.iter().copied()).output();
    let output = output.expect("the test runs again");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

#[test]
#[ignore = "the tests of a missing GPU, a missing compiler and the cache run it in child processes"]
fn one_product() {
    let begin = std::time::Instant::now();
    let engine = match CudaEngine::new(0) {
        Ok(engine) => engine,
        Err(error) => return println!("engine: {error}"),
    };
    let started = begin.elapsed();
    let stream = engine.stream();
    let memory = || stream.alloc_zeros::<f32>(100 * 100).expect("memory");
    let (a, b, mut c) = (memory(), memory(), memory());
    let begin = std::time::Instant::now();
    let gemm = Gemm::matmul(
        Shape {
            m: 100,
            k: 100,
            n: 100,
        },
        Dtype::F32,
    );
    let operands = CudaOperands::new(&a, &b, &mut c);
    println!("{}", engine.explain(&gemm, &operands).expect("explained"));
    match engine.gemm(&gemm, operands) {
        Ok(()) => {
            stream.synchronize().expect("run");
            println!(
                "computed: engine {started:?}, product {:?}",
                begin.elapsed()
            );
        }
        Err(error) => println!("product: {error}"),
    }
}

#[test]
fn no_compiler_no_device_and_any_state_of_the_cache() {
    if cuda::engine().is_none() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("sgemm-bi-cache-{}", std::process::id()));
    let cache = folder.to_str().expect("a name in ASCII");
    let here = [("SGEMM_BI_CACHE_DIR", cache)];
    let text = elsewhere(&[here[0], ("SGEMM_BI_NVRTC", "/nowhere/libnvrtc.so")]);
    assert!(
        text.contains("product: no usable NVRTC") && text.contains("/nowhere"),
        "{text}"
    );
    assert!(text.contains("pip") || text.contains("PyPI"), "{text}");
    let text = elsewhere(&[here[0], ("CUDA_VISIBLE_DEVICES", "")]);
    assert!(
        text.contains("engine: no GPU with ordinal 0: the driver shows 0"),
        "{text}"
    );
    for state in ["cold", "warm"] {
        let text = elsewhere(&here);
        assert!(text.contains("computed"), "{text}");
        println!("{state}: {text}");
    }
    let entries: Vec<_> = std::fs::read_dir(&folder)
        .expect("a cache")
        .flatten()
        .collect();
    assert_eq!(entries.len(), 1, "one kernel: {entries:?}");
    // Anything but the entry is compiled again and replaced.
    let file = entries[0].path();
    let whole = std::fs::read(&file).expect("readable");
    std::fs::write(&file, &whole[..whole.len() / 2]).expect("writable");
    assert!(elsewhere(&here).contains("computed"));
    assert_eq!(std::fs::read(&file).expect("readable"), whole);
    // Without a cache, and with one that cannot be.
    assert!(elsewhere(&[("SGEMM_BI_CACHE_DIR", "")]).contains("computed"));
    assert!(elsewhere(&[("SGEMM_BI_CACHE_DIR", "/dev/null/cache")]).contains("computed"));
    std::fs::remove_dir_all(&folder).expect("removed");
}

//! Tensors of more than 2³¹ elements, and strides that reach as far.

use half::bf16;
use sgemm_bi_core::cuda::CudaOperands;
use sgemm_bi_core::{CpuEngine, Dtype, Gemm, Operands, Shape, View};
use sgemm_bi_tests::compare::assert_bits;
use sgemm_bi_tests::{Buffer, Cuda, Data};

/// The engine, if its GPU has so many bytes to spare.
fn with_memory(bytes: usize) -> Option<Cuda> {
    let cuda = Cuda::new()?;
    let (free, _) = cuda
        .engine
        .context()
        .mem_get_info()
        .expect("the driver knows");
    if free < bytes + (1 << 30) {
        println!("skipped: the GPU has {free} bytes free, {bytes} are needed");
        return None;
    }
    Some(cuda)
}

fn values(len: usize, seed: u64) -> Vec<bf16> {
    match Data::Normal.fill(Dtype::BF16, len, seed) {
        Buffer::BF16(values) => values,
        other => panic!("{}", other.dtype()),
    }
}

fn bits(values: &[bf16]) -> Vec<u32> {
    values
        .iter()
        .map(|value| u32::from(value.to_bits()))
        .collect()
}

#[test]
fn an_output_of_more_than_2_to_the_31_elements() {
    let (m, k, n) = (50_021, 9, 50_003);
    let Some(cuda) = with_memory(2 * m * n) else {
        return;
    };
    let stream = cuda.engine.stream();
    let (x, w) = (values(m * k, 1), values(k * n, 2));
    let on_gpu = |values: &Vec<bf16>| stream.clone_htod(values).expect("copied");
    let (gpu_x, gpu_w) = (on_gpu(&x), on_gpu(&w));
    let mut y = stream.alloc_zeros::<bf16>(m * n).expect("memory");
    for row_major in [true, false] {
        // The other way round the product is turned.
        let out = if row_major {
            View::row_major(n)
        } else {
            View::col_major(m)
        };
        let gemm = Gemm::matmul(Shape { m, k, n }, Dtype::BF16);
        let gemm = gemm.with_views(View::row_major(k), View::row_major(n), out);
        let operands = CudaOperands::new(&gpu_x, &gpu_w, &mut y);
        cuda.engine.gemm(&gemm, operands).expect("computed");
        let cpu = CpuEngine::new().expect("a CPU engine");
        for row in [0, 1, 42_949, m / 2, m - 1] {
            let mut expected = vec![bf16::ZERO; n];
            let alone = Gemm::matmul(Shape { m: 1, k, n }, Dtype::BF16);
            let operands = Operands::new(&x[row * k..(row + 1) * k], &w, &mut expected);
            cpu.gemm(&alone, operands).expect("computed");
            let got = match row_major {
                true => stream
                    .clone_dtoh(&y.slice(row * n..(row + 1) * n))
                    .expect("copied"),
                false => {
                    // Some of the row's elements, a column apart.
                    let cols = [0, 1, n / 2, n - 1];
                    let element = |col: usize| y.slice(col * m + row..col * m + row + 1);
                    let got = cols.map(|col| stream.clone_dtoh(&element(col)).expect("copied")[0]);
                    expected = cols.map(|col| expected[col]).to_vec();
                    got.to_vec()
                }
            };
            let what = format!("row {row}, row-major {row_major}");
            assert_bits(
                &what,
                Dtype::BF16,
                &[got.len()],
                &bits(&got),
                &bits(&expected),
            );
        }
    }
}

#[test]
fn rows_of_an_input_that_are_2_to_the_30_elements_apart() {
    const APART: usize = 1 << 30;
    let (k, n) = (100, 40);
    let Some(cuda) = with_memory(6 * APART) else {
        return;
    };
    let stream = cuda.engine.stream();
    let mut x = stream.alloc_zeros::<bf16>(2 * APART + k).expect("memory");
    let dense = values(3 * k, 3);
    for row in 0..3 {
        let mut to = x.slice_mut(row * APART..row * APART + k);
        stream
            .memcpy_htod(&dense[row * k..(row + 1) * k], &mut to)
            .expect("copied");
    }
    let w = values(k * n, 4);
    let gpu_w = stream.clone_htod(&w).expect("copied");
    let cpu = CpuEngine::new().expect("a CPU engine");
    let dense_gemm = Gemm::matmul(Shape { m: 3, k, n }, Dtype::BF16);
    let mut expected = vec![bf16::ZERO; 3 * n];
    cpu.gemm(&dense_gemm, Operands::new(&dense, &w, &mut expected))
        .expect("computed");
    let far = View {
        offset: 0,
        row_stride: APART,
        col_stride: 1,
    };
    let gemm = dense_gemm.with_views(far, View::row_major(n), View::row_major(n));
    let mut y = stream.alloc_zeros::<bf16>(3 * n).expect("memory");
    cuda.engine
        .gemm(&gemm, CudaOperands::new(&x, &gpu_w, &mut y))
        .expect("computed");
    let got = stream.clone_dtoh(&y).expect("copied");
    assert_bits(
        "far rows",
        Dtype::BF16,
        &[3, n],
        &bits(&got),
        &bits(&expected),
    );
}

//! The constants of the kernels' exp and ln against those of the CPU's, and the instances.

use super::{Kernel, RowOp, Step, TargetType};
use crate::Dtype;
use crate::math;

/// The hexadecimal numbers of 16 digits in a text, in order.
fn constants(text: &str) -> Vec<u64> {
    let numbers = text.split("0x").skip(1);
    let digits = numbers.map(|n| n.chars().take_while(char::is_ascii_hexdigit).collect());
    let long = digits.filter(|digits: &String| digits.len() == 16);
    long.map(|digits| u64::from_str_radix(&digits, 16).expect("digits"))
        .collect()
}

#[test]
fn the_kernels_have_the_constants_of_math_rs() {
    let kernel = constants(include_str!("../../../kernels/exp_ln.cuh"));
    let expected = math::constants();
    assert_eq!(&kernel[..expected.len()], expected);
}

#[test]
fn a_kernel_covers_the_rows_of_its_shape() {
    let size = |cols, rows| {
        let kernel = Kernel::new(Step::LogSoftmax, cols, Dtype::F32, Dtype::F32);
        let size = kernel.size(rows);
        (size.grid, size.block)
    };
    assert_eq!(size(10, 64), (2, 256));
    assert_eq!(size(17, 64), (8, 256));
    assert_eq!(size(4096, 9), (2, 256));
    assert_eq!(size(4097, 9), (9, 256));
    assert_eq!(size(4097, usize::MAX), (i32::MAX as u32, 256));
}

#[test]
fn an_operation_has_the_instances_that_it_launches() {
    let targets = TargetType::U32;
    let names = |op: RowOp, cols| {
        let kernels = op.kernels(cols, Dtype::BF16).into_iter().chain(op.check());
        kernels
            .map(|kernel| kernel.instance.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        names(RowOp::LogSoftmax, 5000),
        ["rows OPERATION=0 ELEMENT=1 OUT=1 SCALAR=0 TARGET=0 LANES=32 WARPS=8"]
    );
    let loss = Dtype::F16;
    assert_eq!(
        names(RowOp::CrossEntropy { targets, loss }, 10),
        [
            "rows OPERATION=2 ELEMENT=1 OUT=0 SCALAR=0 TARGET=1 LANES=8 WARPS=1",
            "rows OPERATION=4 ELEMENT=0 OUT=2 SCALAR=0 TARGET=0 LANES=32 WARPS=32",
            "rows OPERATION=5 ELEMENT=0 OUT=0 SCALAR=0 TARGET=1 LANES=32 WARPS=1",
        ]
    );
}

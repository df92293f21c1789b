//! The operations as functions: a linear layer's product and a batched matrix product.

use candle_core::{DType, Result, Tensor};
use sgemm_bi_core::{Op, Tier, WeightLayout};

use crate::error::Error;
use crate::ops::{Axis, Contraction};
use crate::storage::require_supported;

/// `y = x·W (+ bias)`, differentiable any number of times.
///
/// | argument | shape | dtype |
/// |---|---|---|
/// | `x` | `[.., in]`, rank 1 or more | f32, bf16 or f16 |
/// | `weight` | `[out, in]` or `[in, out]`, as `layout` says | that of `x` |
/// | `bias` | `[out]` | f32, or that of `x` |
/// | result | `[.., out]`, dense | that of `x` |
///
/// Any size may be zero; with `in = 0` every row is the bias. Operands may have any strides and
/// any start offset. Nothing is copied but a bias that is not dense.
///
/// # Bits
///
/// Those of `docs/contract.md` section 1, forward: one reduction over `in`, the bias added to the
/// f32 total, one rounding to the result's dtype (section 7). A row of the result depends on its
/// row of `x` alone, so it is the same in any batch, at any rank, in any layout.
///
/// Gradients, each computed in `tier` and rounded once to its argument's dtype:
///
/// - of `x`: dY·Wᵀ, one reduction over `out`;
/// - of `weight`: one reduction over *all* leading dimensions of `x` taken together in row-major
///   order, accumulated in f32 (section 3);
/// - of `bias`: the rows of dY added in the same order, in f32; the same in every tier.
///
/// # Cost
///
/// The gradient of `weight` copies an operand whose leading dimensions are not evenly spaced, such
/// as `x.transpose(0, 1)` of a three-dimensional tensor; nothing else does.
///
/// # Errors
///
/// [`Error::Rank`], [`Error::Shape`], [`Error::Dtype`], [`Error::Device`], and the engine's, such
/// as [`sgemm_bi_core::Error::UnsupportedTier`]; all as a [`candle_core::Error`].
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_sgemm_bi::{Tier, WeightLayout, functional};
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
/// let weight = Tensor::new(&[[1f32, 0.], [0.5, 1.], [2., 4.]], &Device::Cpu)?; // [out, in]
/// let bias = Tensor::new(&[0f32, 10., 100.], &Device::Cpu)?;
///
/// let y = functional::linear(&x, &weight, Some(&bias), WeightLayout::OutIn, Tier::Scalar)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[1.0, 12.5, 110.0], [3.0, 15.5, 122.0]]);
///
/// let in_out = weight.t()?; // the same weight, read as [in, out]
/// let same = functional::linear(&x, &in_out, Some(&bias), WeightLayout::InOut, Tier::Scalar)?;
/// assert_eq!(same.to_vec2::<f32>()?, y.to_vec2::<f32>()?);
/// # Ok(())
/// # }
/// ```
pub fn linear(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    layout: WeightLayout,
    tier: Tier,
) -> Result<Tensor> {
    let op = "linear";
    require_supported(op, "x", x)?;
    require_supported(op, "weight", weight)?;
    require_dtype(op, "weight", weight, &[x.dtype()])?;

    let Some((&in_features, leading)) = x.dims().split_last() else {
        return Err(rank(op, "x", "at least 1", x).into());
    };
    let &[rows, cols] = weight.dims() else {
        return Err(rank(op, "weight", "2", weight).into());
    };
    let (weight_in, out_features, name) = match layout {
        WeightLayout::OutIn => (cols, rows, "[out, in]"),
        WeightLayout::InOut => (rows, cols, "[in, out]"),
    };
    if weight_in != in_features {
        let expected = format!("{name} with in = {in_features}, the last dimension of x");
        return Err(shape(op, "weight", expected, weight).into());
    }
    if let Some(bias) = bias {
        require_supported(op, "bias", bias)?;
        require_dtype(op, "bias", bias, &[DType::F32, x.dtype()])?;
        if bias.dims() != [out_features] {
            let expected = format!("[out] with out = {out_features}, as weight has");
            return Err(shape(op, "bias", expected, bias).into());
        }
    }

    let leading: Vec<Axis> = (0..leading.len()).map(Axis::Named).collect();
    let (k, n) = (Axis::Named(leading.len()), Axis::Named(leading.len() + 1));
    let contraction = Contraction {
        op: Op::Forward,
        tier,
        lhs: [&leading[..], &[k]].concat(),
        rhs: match layout {
            WeightLayout::OutIn => vec![n, k],
            WeightLayout::InOut => vec![k, n],
        },
        out: [&leading[..], &[n]].concat(),
    };
    match bias {
        None => contraction.apply(x, weight),
        Some(bias) => contraction.apply_with_bias(x, weight, bias),
    }
}

/// The matrix product `a·b` with broadcast batch dimensions, differentiable any number of times.
///
/// | `a` | `b` | result |
/// |---|---|---|
/// | `[.., m, k]` | `[.., k, n]` | `[.., m, n]` |
/// | `[k]` | `[.., k, n]` | `[.., n]` |
/// | `[.., m, k]` | `[k]` | `[.., m]` |
/// | `[k]` | `[k]` | `[]` |
///
/// Leading dimensions are aligned at the right and broadcast as `torch.matmul` and
/// [`Tensor::broadcast_matmul`] do: equal, or 1, or absent. Operands are f32, bf16 or f16, both
/// of one dtype, which is the result's; any size may be zero; strides and offsets are free, a
/// stride of zero included. Nothing is expanded or copied.
///
/// # Bits
///
/// Each entry has the bits of the single product (`docs/contract.md` sections 1 and 2).
///
/// Gradients, each computed in `tier` and rounded once to the operands' dtype. One element of an
/// operand's gradient is **one** reduction in the contract's order, over the operand's broadcast
/// batch dimensions (those in which it has size 1 or nothing, and the result more) followed by
/// the matrix dimension that it lacks, all flattened in row-major order:
///
/// - of `a`: dC·bᵀ, over a's broadcast batch dimensions, then n;
/// - of `b`: aᵀ·dC, over b's broadcast batch dimensions, then m.
///
/// So the gradient of a weight `[k, n]` shared by a batch `[.., m, k]` is what [`linear`] gives it.
/// An operand that was expanded *before* the call, by [`Tensor::broadcast_as`] for example, is
/// not broadcast for this definition: its expanded gradient is summed by Candle, in its dtype.
///
/// # Cost
///
/// A gradient copies an operand along which its flattened reduction has no single stride.
///
/// # Errors
///
/// [`Error::Rank`], [`Error::Shape`], [`Error::Dtype`], [`Error::Device`], and the engine's; all as
/// a [`candle_core::Error`].
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_sgemm_bi::{Tier, functional};
///
/// # fn main() -> candle_core::Result<()> {
/// let a = Tensor::ones((4, 1, 2, 3), DType::BF16, &Device::Cpu)?;
/// let b = Tensor::ones((5, 3, 6), DType::BF16, &Device::Cpu)?;
/// assert_eq!(functional::matmul(&a, &b, Tier::Scalar)?.dims(), [4, 5, 2, 6]);
/// # Ok(())
/// # }
/// ```
pub fn matmul(a: &Tensor, b: &Tensor, tier: Tier) -> Result<Tensor> {
    let op = "matmul";
    require_supported(op, "a", a)?;
    require_supported(op, "b", b)?;
    require_dtype(op, "b", b, &[a.dtype()])?;

    let (a_batch, a_matrix) = split_matrix(a.dims());
    let (b_batch, b_matrix) = split_matrix(b.dims());
    let Some(&a_k) = a_matrix.last() else {
        return Err(rank(op, "a", "at least 1", a).into());
    };
    let Some(&b_k) = b_matrix.first() else {
        return Err(rank(op, "b", "at least 1", b).into());
    };
    if a_k != b_k {
        let expected = match b_matrix.len() {
            1 => format!("[k] with k = {a_k}, the last dimension of a"),
            _ => format!("[.., k, n] with k = {a_k}, the last dimension of a"),
        };
        return Err(shape(op, "b", expected, b).into());
    }

    let depth = a_batch.len().max(b_batch.len());
    let [m, k, n] = [depth, depth + 1, depth + 2].map(Axis::Named);
    // The size of an operand's batch dimension, counted as in the result.
    let size = |batch: &[usize], i: usize| {
        let absent = depth - batch.len();
        i.checked_sub(absent).map(|i| batch[i])
    };
    let (mut lhs, mut rhs, mut out) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..depth {
        let (of_a, of_b) = match (size(a_batch, i), size(b_batch, i)) {
            (Some(x), Some(y)) if x == y => (Some(Axis::Named(i)), Some(Axis::Named(i))),
            (Some(1), Some(_)) => (Some(Axis::Unit), Some(Axis::Named(i))),
            (Some(_), Some(1)) => (Some(Axis::Named(i)), Some(Axis::Unit)),
            (Some(_), Some(_)) => {
                let expected = format!("batch dimensions that broadcast with a's {a_batch:?}");
                return Err(shape(op, "b", expected, b).into());
            }
            (x, y) => (x.map(|_| Axis::Named(i)), y.map(|_| Axis::Named(i))),
        };
        lhs.extend(of_a);
        rhs.extend(of_b);
        out.push(Axis::Named(i));
    }
    if a_matrix.len() == 2 {
        lhs.push(m);
        out.push(m);
    }
    lhs.push(k);
    rhs.push(k);
    if b_matrix.len() == 2 {
        rhs.push(n);
        out.push(n);
    }
    let op = Op::Matmul;
    Contraction {
        op,
        tier,
        lhs,
        rhs,
        out,
    }
    .apply(a, b)
}

/// The batch dimensions, and the last two (or the only one).
fn split_matrix(dims: &[usize]) -> (&[usize], &[usize]) {
    dims.split_at(dims.len().saturating_sub(2))
}

fn require_dtype(
    op: &'static str,
    argument: &'static str,
    tensor: &Tensor,
    allowed: &[DType],
) -> std::result::Result<(), Error> {
    let got = tensor.dtype();
    if allowed.contains(&got) {
        return Ok(());
    }
    let mut names: Vec<&str> = allowed.iter().map(DType::as_str).collect();
    names.dedup();
    let expected = names.join(" or ");
    Err(Error::Dtype {
        op,
        argument,
        expected,
        got,
    })
}

fn rank(op: &'static str, argument: &'static str, expected: &'static str, got: &Tensor) -> Error {
    let got = got.dims().to_vec();
    Error::Rank {
        op,
        argument,
        expected,
        got,
    }
}

fn shape(op: &'static str, argument: &'static str, expected: String, got: &Tensor) -> Error {
    let got = got.dims().to_vec();
    Error::Shape {
        op,
        argument,
        expected,
        got,
    }
}

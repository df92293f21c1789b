//! The product of two tensors over named indices, with an optional bias, as Candle operations.
//!
//! Every product of this crate, and every derivative of one, is a [`Contraction`]: two operands
//! and a result whose axes carry names. A name that both operands and the result have is a batch
//! index; one that the result and one operand have is a row or a column; one that only the
//! operands have is summed over. The gradient of an operand is the contraction of the result's
//! gradient with the other operand, summed over whatever the operand lacks, so differentiation
//! never leaves this file.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};
use sgemm_bi_core::{Op, Tier};

use super::bias::RowSum;
use super::lower;

/// What an axis of a tensor stands for in a contraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    /// The index of this name. Names order the indices: a sum over several runs through them in
    /// row-major order, the largest name fastest.
    Named(usize),
    /// No index: the axis has size 1 and broadcasts.
    Unit,
}

/// `out = lhs · rhs`, summed over the names that `out` lacks in the contract's order.
#[derive(Clone, Debug)]
pub(crate) struct Contraction {
    /// What the product is called in errors.
    pub op: Op,
    /// The arithmetic.
    pub tier: Tier,
    /// Axes of the first operand.
    pub lhs: Vec<Axis>,
    /// Axes of the second operand.
    pub rhs: Vec<Axis>,
    /// Axes of the result.
    pub out: Vec<Axis>,
}

impl Contraction {
    /// Computes the product, tracking gradients.
    ///
    /// Both operands must have the axes' ranks, agree in every size, and be of one dtype.
    pub(crate) fn apply(self, lhs: &Tensor, rhs: &Tensor) -> Result<Tensor> {
        lhs.apply_op2(rhs, self)
    }

    /// Computes the product with `bias`, one value for each element of the result's last axis,
    /// added to the f32 total before its one rounding (contract section 7).
    pub(crate) fn apply_with_bias(
        self,
        lhs: &Tensor,
        rhs: &Tensor,
        bias: &Tensor,
    ) -> Result<Tensor> {
        lhs.apply_op3(rhs, bias, WithBias(self))
    }

    /// The gradients of the two operands; `None` where Candle tracks none.
    fn gradients(
        &self,
        lhs: &Tensor,
        rhs: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (lhs_op, rhs_op) = match self.op {
            Op::Forward => (Op::InputGradient, Op::WeightGradient),
            _ => (Op::Matmul, Op::Matmul),
        };
        let of_lhs = || {
            let contraction = Contraction {
                op: lhs_op,
                tier: self.tier,
                lhs: self.out.clone(),
                rhs: self.rhs.clone(),
                out: self.lhs.clone(),
            };
            contraction.apply(grad, rhs)
        };
        let of_rhs = || {
            let contraction = Contraction {
                op: rhs_op,
                tier: self.tier,
                lhs: self.lhs.clone(),
                rhs: self.out.clone(),
                out: self.rhs.clone(),
            };
            contraction.apply(lhs, grad)
        };
        Ok((
            lhs.track_op().then(of_lhs).transpose()?,
            rhs.track_op().then(of_rhs).transpose()?,
        ))
    }
}

impl CustomOp2 for Contraction {
    fn name(&self) -> &'static str {
        self.op.name()
    }

    fn cpu_fwd(
        &self,
        lhs: &CpuStorage,
        lhs_layout: &Layout,
        rhs: &CpuStorage,
        rhs_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Ok(lower::run(
            self,
            (lhs, lhs_layout),
            (rhs, rhs_layout),
            None,
        )?)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        lhs: &CudaStorage,
        lhs_layout: &Layout,
        rhs: &CudaStorage,
        rhs_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        Ok(lower::run(
            self,
            (lhs, lhs_layout),
            (rhs, rhs_layout),
            None,
        )?)
    }

    fn bwd(
        &self,
        lhs: &Tensor,
        rhs: &Tensor,
        _out: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        self.gradients(lhs, rhs, grad)
    }
}

/// A contraction with a bias along the result's last axis.
struct WithBias(Contraction);

impl CustomOp3 for WithBias {
    fn name(&self) -> &'static str {
        self.0.op.name()
    }

    fn cpu_fwd(
        &self,
        lhs: &CpuStorage,
        lhs_layout: &Layout,
        rhs: &CpuStorage,
        rhs_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Ok(lower::run(
            &self.0,
            (lhs, lhs_layout),
            (rhs, rhs_layout),
            Some((bias, bias_layout)),
        )?)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        lhs: &CudaStorage,
        lhs_layout: &Layout,
        rhs: &CudaStorage,
        rhs_layout: &Layout,
        bias: &CudaStorage,
        bias_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        Ok(lower::run(
            &self.0,
            (lhs, lhs_layout),
            (rhs, rhs_layout),
            Some((bias, bias_layout)),
        )?)
    }

    fn bwd(
        &self,
        lhs: &Tensor,
        rhs: &Tensor,
        bias: &Tensor,
        _out: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (of_lhs, of_rhs) = self.0.gradients(lhs, rhs, grad)?;
        let of_bias = || grad.apply_op1(RowSum::into_dtype(bias.dtype()));
        Ok((of_lhs, of_rhs, bias.track_op().then(of_bias).transpose()?))
    }
}

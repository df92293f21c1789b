//! `Linear`: a drop-in for [`candle_nn::Linear`] whose bits are defined.

use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;
use sgemm_bi_core::{Tier, WeightLayout};

use crate::functional;

/// A linear layer, `y = x·W (+ bias)`, for inputs `[.., in]` of rank 1 or more.
///
/// It is made, named, initialised, saved and loaded as [`candle_nn::Linear`] is, and converts to
/// and from it without copying. Shapes, dtypes, bits, gradients and errors are those of
/// [`functional::linear`]; shapes that do not fit each other are reported by
/// [`forward`](Module::forward), since [`new`](Linear::new) cannot fail.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_sgemm_bi::{Linear, Module};
///
/// # fn main() -> candle_core::Result<()> {
/// let weight = Tensor::new(&[[1f32, 2.], [3., 4.], [5., 6.]], &Device::Cpu)?;
/// let layer = Linear::new(weight, None);
/// let y = layer.forward(&Tensor::new(&[10f32, 100.], &Device::Cpu)?)?;
/// assert_eq!(y.to_vec1::<f32>()?, [210.0, 430.0, 650.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    layout: WeightLayout,
    tier: Tier,
}

impl Linear {
    /// A layer with a weight `[out, in]` and a bias `[out]`, in the scalar tier.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Linear {
            weight,
            bias,
            layout: WeightLayout::OutIn,
            tier: Tier::Scalar,
        }
    }

    /// The same tensors as a [`candle_nn::Linear`], shared with it.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_sgemm_bi::{Linear, Module};
    ///
    /// # fn main() -> candle_core::Result<()> {
    /// let theirs = candle_nn::Linear::new(Tensor::ones((3, 2), DType::F32, &Device::Cpu)?, None);
    /// let ours = Linear::from_candle(&theirs);
    /// assert_eq!(ours.weight().id(), theirs.weight().id());
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_candle(linear: &candle_nn::Linear) -> Self {
        Linear::new(linear.weight().clone(), linear.bias().cloned())
    }

    /// A [`candle_nn::Linear`] that shares this layer's tensors; with
    /// [`WeightLayout::InOut`] its weight is a transposed view of this one's.
    ///
    /// Errors: Candle's, when the weight has fewer than two dimensions and must be transposed.
    pub fn to_candle(&self) -> Result<candle_nn::Linear> {
        let weight = match self.layout {
            WeightLayout::OutIn => self.weight.clone(),
            WeightLayout::InOut => self.weight.t()?,
        };
        Ok(candle_nn::Linear::new(weight, self.bias.clone()))
    }

    /// Says how the weight is stored: `[out, in]` (the default) or `[in, out]`. Changes no data
    /// and no bits.
    pub fn with_layout(self, layout: WeightLayout) -> Self {
        Linear { layout, ..self }
    }

    /// Chooses the arithmetic, forward and backward; the default is [`Tier::Scalar`].
    ///
    /// A tier names a bit contract (`docs/contract.md` sections 4 and 5). One that the engine or
    /// the dtype does not have is an error of [`forward`](Module::forward).
    pub fn with_tier(self, tier: Tier) -> Self {
        Linear { tier, ..self }
    }

    /// The weight, in [`layout`](Linear::layout).
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias, `[out]`.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// How the weight is stored.
    pub fn layout(&self) -> WeightLayout {
        self.layout
    }

    /// The arithmetic.
    pub fn tier(&self) -> Tier {
        self.tier
    }
}

impl Module for Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        functional::linear(x, &self.weight, self.bias(), self.layout, self.tier)
    }
}

impl From<&candle_nn::Linear> for Linear {
    fn from(linear: &candle_nn::Linear) -> Self {
        Linear::from_candle(linear)
    }
}

impl From<candle_nn::Linear> for Linear {
    fn from(linear: candle_nn::Linear) -> Self {
        Linear::from_candle(&linear)
    }
}

impl TryFrom<&Linear> for candle_nn::Linear {
    type Error = candle_core::Error;

    fn try_from(linear: &Linear) -> Result<Self> {
        linear.to_candle()
    }
}

/// A layer from a `VarBuilder`: `"weight"` `[out_dim, in_dim]` and `"bias"` `[out_dim]`, created as
/// [`candle_nn::linear()`] creates them when they do not exist yet (Kaiming-normal, and uniform in
/// ±1/√in_dim).
///
/// Errors: the `VarBuilder`'s.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::{VarBuilder, VarMap};
///
/// # fn main() -> candle_core::Result<()> {
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let layer = candle_sgemm_bi::linear(64, 10, vb.pp("head"))?;
/// assert_eq!(layer.weight().dims(), [10, 64]);
/// assert!(varmap.data().lock().unwrap().contains_key("head.weight"));
/// # Ok(())
/// # }
/// ```
pub fn linear(in_dim: usize, out_dim: usize, vb: VarBuilder<'_>) -> Result<Linear> {
    candle_nn::linear(in_dim, out_dim, vb).map(Linear::from)
}

/// [`linear`] without a bias.
///
/// Errors: the `VarBuilder`'s.
pub fn linear_no_bias(in_dim: usize, out_dim: usize, vb: VarBuilder<'_>) -> Result<Linear> {
    candle_nn::linear_no_bias(in_dim, out_dim, vb).map(Linear::from)
}

/// [`linear`] or [`linear_no_bias`], with [`candle_nn::linear_b`]'s signature.
///
/// Errors: the `VarBuilder`'s.
pub fn linear_b(in_dim: usize, out_dim: usize, bias: bool, vb: VarBuilder<'_>) -> Result<Linear> {
    candle_nn::linear_b(in_dim, out_dim, bias, vb).map(Linear::from)
}

//! Stochastic gradient descent with fixed bits.

use candle_core::backprop::GradStore;
use candle_core::{DType, Result, Tensor, Var};
use candle_nn::Optimizer;
use sgemm_bi_core::cpu::with_default_float_env;

/// Stochastic gradient descent without momentum: w ← w − lr·g. A replacement for `candle_nn::SGD`.
///
/// A variable without a gradient stays as it is; variables that are not floating-point are left
/// out.
///
/// # Bits
///
/// Those of `docs/contract.md` section 9, on every device: the product and the difference are two
/// operations with a rounding each, never a fused one.
///
/// | weight and gradient | roundings |
/// |---|---|
/// | f32 | lr to f32; lr·g to f32; w − lr·g to f32 |
/// | bf16, f16 | the same in f32, on exactly widened w and g; then once to the weight's dtype |
/// | f64 | lr·g and w − lr·g, to f64 |
///
/// A NaN stays a NaN, whose other bits are the device's.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_nn::Optimizer;
/// use candle_sgemm_bi::Sgd;
///
/// # fn main() -> candle_core::Result<()> {
/// let w = Var::new(&[1f32, 2., 3.], &Device::Cpu)?;
/// let mut sgd = Sgd::new(vec![w.clone()], 0.5)?;
/// sgd.backward_step(&w.sqr()?.sum_all()?)?; // the gradient is 2·w
/// assert_eq!(w.to_vec1::<f32>()?, [0.0, 0.0, 0.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Sgd {
    vars: Vec<Var>,
    learning_rate: f64,
}

impl Optimizer for Sgd {
    type Config = f64;

    fn new(vars: Vec<Var>, learning_rate: f64) -> Result<Self> {
        let mut sgd = Sgd {
            vars: Vec::new(),
            learning_rate,
        };
        vars.iter().for_each(|var| sgd.push(var));
        Ok(sgd)
    }

    fn step(&mut self, grads: &GradStore) -> Result<()> {
        for var in &self.vars {
            if let Some(grad) = grads.get(var) {
                let (w, g) = (var.detach(), grad.detach());
                // Contract section 2: the caller's floating-point state does not matter.
                let w = with_default_float_env(|| updated(&w, &g, self.learning_rate))?;
                var.set(&w)?;
            }
        }
        Ok(())
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn set_learning_rate(&mut self, lr: f64) {
        self.learning_rate = lr;
    }
}

impl Sgd {
    /// The variables.
    pub fn into_inner(self) -> Vec<Var> {
        self.vars
    }

    /// Adds a variable, unless it is not floating-point.
    pub fn push(&mut self, var: &Var) {
        if var.dtype().is_float() {
            self.vars.push(var.clone());
        }
    }
}

/// w − lr·g. Two operations of two operands: one with a number (`affine`) fuses on a GPU.
fn updated(w: &Tensor, g: &Tensor, learning_rate: f64) -> Result<Tensor> {
    let (dtype, rate) = match w.dtype() {
        DType::F64 => (DType::F64, Tensor::new(learning_rate, g.device())?),
        _ => (DType::F32, Tensor::new(learning_rate as f32, g.device())?),
    };
    let step = g.to_dtype(dtype)?.broadcast_mul(&rate)?;
    w.to_dtype(dtype)?.sub(&step)?.to_dtype(w.dtype())
}

//! The network: three linear layers with relu between them.

use candle_core::{DType, Device, Module, Result, Tensor, Var};
use candle_sgemm_bi::{Linear, Tier};

use crate::args::Settings;
use crate::data::{CLASSES, PIXELS};
use crate::hash::Parameter;
use crate::rng::Rng;

/// Name, inputs and outputs of each layer, first to last.
const LAYERS: [(&str, usize, usize); 3] =
    [("fc1", PIXELS, 128), ("fc2", 128, 64), ("fc3", 64, CLASSES)];

/// The classifier. Its parameters are f32; its products are computed in the settings' dtype.
pub struct Mlp {
    layers: Vec<Layer>,
    dtype: DType,
    tier: Tier,
}

/// The parameters of a linear layer.
struct Layer {
    name: &'static str,
    /// `[out, in]`
    weight: Var,
    /// `[out]`
    bias: Var,
}

impl Mlp {
    /// Fresh parameters: layer by layer, row by row, weights uniform in ±√(6 / inputs); biases 0.
    pub fn new(settings: &Settings, device: &Device, rng: &mut Rng) -> Result<Self> {
        let layers = LAYERS.iter().map(|&(name, inputs, outputs)| {
            // IEEE division and square root are correctly rounded, so the bound is the same
            // everywhere.
            let bound = (6.0 / inputs as f64).sqrt();
            let weight = (0..inputs * outputs).map(|_| rng.symmetric(bound));
            let weight = weight.collect::<Vec<f32>>();
            Ok(Layer {
                name,
                weight: Var::from_vec(weight, (outputs, inputs), device)?,
                bias: Var::zeros(outputs, DType::F32, device)?,
            })
        });
        Ok(Mlp {
            layers: layers.collect::<Result<_>>()?,
            dtype: settings.dtype.into(),
            tier: settings.tier.into(),
        })
    }

    /// f32 logits `[rows, 10]` of f32 images `[rows, 64]`.
    ///
    /// The bits of the products, forward and backward, are defined by the contract. What is left
    /// works element by element and cannot depend on an order:
    ///
    /// - `to_dtype` rounds once to nearest even, or widens exactly; so does its gradient;
    /// - `relu` is max(x, 0). Which zero it makes of −0 does not matter: a product's total is
    ///   +0 + … (contract section 3), where a zero term of either sign adds nothing. Its gradient
    ///   is a product by 0 or 1;
    /// - each tensor is used once, so no two gradients are added.
    pub fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let mut x = images.to_dtype(self.dtype)?;
        for (index, layer) in self.layers.iter().enumerate() {
            if index > 0 {
                x = x.relu()?;
            }
            x = self.linear(layer)?.forward(&x)?;
        }
        x.to_dtype(DType::F32)
    }

    /// A layer with its weight rounded to the dtype of the products; gradients flow back to the
    /// f32 parameters. The bias is f32: the contract adds it to the f32 total (section 7).
    fn linear(&self, layer: &Layer) -> Result<Linear> {
        let weight = layer.weight.to_dtype(self.dtype)?;
        let bias = layer.bias.as_tensor().clone();
        Ok(Linear::new(weight, Some(bias)).with_tier(self.tier))
    }

    /// The variables to train.
    pub fn vars(&self) -> Vec<Var> {
        let vars = self.layers.iter();
        vars.flat_map(|layer| [layer.weight.clone(), layer.bias.clone()])
            .collect()
    }

    /// The parameters as they are now.
    pub fn parameters(&self) -> Result<Vec<Parameter>> {
        let mut parameters = Vec::new();
        for layer in &self.layers {
            for (kind, var) in [("weight", &layer.weight), ("bias", &layer.bias)] {
                let values = var.flatten_all()?.to_vec1::<f32>()?;
                parameters.push(Parameter {
                    name: format!("{}.{kind}", layer.name),
                    shape: var.dims().to_vec(),
                    data: values
                        .iter()
                        .flat_map(|value| value.to_le_bytes())
                        .collect(),
                });
            }
        }
        Ok(parameters)
    }
}

/// How many rows of `logits` have their largest value (the first of equal ones) at their label.
pub fn correct(logits: &Tensor, labels: &[u32]) -> Result<usize> {
    let rows = logits.to_vec2::<f32>()?;
    let hits = rows.iter().zip(labels).filter(|(row, label)| {
        let best = row.iter().enumerate().fold(
            0,
            |best, (class, value)| {
                if *value > row[best] { class } else { best }
            },
        );
        best == **label as usize
    });
    Ok(hits.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tie_goes_to_the_first_class() -> Result<()> {
        let logits = Tensor::new(&[[1.0f32, 3.0, 3.0], [0.0, 0.0, 0.0]], &Device::Cpu)?;
        assert_eq!(correct(&logits, &[1, 0])?, 2);
        assert_eq!(correct(&logits, &[2, 1])?, 0);
        Ok(())
    }
}

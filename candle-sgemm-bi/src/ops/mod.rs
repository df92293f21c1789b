//! The differentiable operations: a product of two tensors, the same with a bias, a bias gradient.

mod bias;
mod contraction;
mod lower;

pub(crate) use contraction::{Axis, Contraction};

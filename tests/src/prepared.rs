//! A golden case with its operands in memory, ready to run on any number of engines.

use sgemm_bi_core::{BatchDim, BiasGradient, Dtype, Gemm, Operands, Shape};

use crate::golden::{Case, GoldenOp, Layout};
use crate::hash::hash;
use crate::place::{Placed, Stack};
use crate::problem::{Problem, TAIL};
use crate::{Buffer, Engine};

/// What a golden case computes.
#[derive(Clone, Debug)]
pub enum Prepared {
    /// One product.
    Product(Problem),
    /// A bias gradient.
    BiasGradient {
        /// What to compute.
        problem: BiasGradient,
        /// The gradient whose columns are summed.
        dy: Placed,
        /// What the output holds before.
        db: Buffer,
    },
    /// A batch of products.
    Batched {
        /// What to compute.
        gemm: Gemm,
        /// The first operand.
        lhs: Placed,
        /// The second operand.
        rhs: Placed,
        /// The output before.
        out: Placed,
    },
}

/// The batch is [2, 3]: the first operand is broadcast along the outer dimension, the second one
/// along the inner dimension.
const OUTER: usize = 2;
const INNER: usize = 3;

/// What outputs hold that are to be overwritten.
fn blank(dtype: Dtype, len: usize) -> Buffer {
    Buffer::from_bits(dtype, len, |_| 0xDEAD_BEEF)
}

impl Prepared {
    /// The case with its operands laid out.
    pub fn new(case: &Case, layout: Layout) -> Self {
        match case.op {
            GoldenOp::BiasGradient | GoldenOp::BiasGradientAccumulate => {
                Self::bias_gradient(case, layout)
            }
            GoldenOp::MatmulBatched => Self::batched(case, layout),
            _ => Self::product(case, layout),
        }
    }

    fn product(case: &Case, layout: Layout) -> Self {
        let (shape, dtype, weight) = (case.shape, case.dtype, layout.weight());
        let forward = Gemm::forward(shape, dtype, weight);
        let gradient = Gemm::weight_gradient(shape, dtype, weight);
        let gemm = match case.op {
            GoldenOp::ForwardBias => forward.with_bias(dtype),
            GoldenOp::ForwardBiasF32 => forward.with_bias(Dtype::F32),
            GoldenOp::ForwardOutF32 => forward.with_out_dtype(Dtype::F32),
            GoldenOp::InputGradient => Gemm::input_gradient(shape, dtype, weight),
            GoldenOp::WeightGradient => gradient,
            GoldenOp::WeightGradientAccumulate => gradient.accumulating(),
            _ => forward,
        }
        .with_tier(case.tier);
        let (rows, cols, r) = (gemm.rows(), gemm.cols(), gemm.reduction());
        let start = gemm.accumulates();
        let problem = Problem {
            lhs: case.fill("lhs", dtype, rows * r),
            rhs: case.fill("rhs", dtype, r * cols),
            bias: gemm.bias().map(|dtype| case.fill("bias", dtype, cols)),
            start: start.then(|| case.fill("out", Dtype::F32, rows * cols)),
            gemm,
        };
        Prepared::Product(match layout {
            Layout::Strided => problem.placed(layout.places()),
            Layout::InOut | Layout::OutIn => problem,
        })
    }

    fn bias_gradient(case: &Case, layout: Layout) -> Self {
        let Shape { m, n, .. } = case.shape;
        let view = layout.places()[1].view(m, n);
        let problem = BiasGradient::new(m, n, case.dtype).with_view(view);
        let dy = case.fill("dy", case.dtype, m * n);
        let accumulate = case.op == GoldenOp::BiasGradientAccumulate;
        Prepared::BiasGradient {
            problem: if accumulate {
                problem.accumulating()
            } else {
                problem
            },
            dy: Placed::new(&dy, Stack::one(m, n, view), 0),
            db: if accumulate {
                case.fill("db", Dtype::F32, n)
            } else {
                blank(Dtype::F32, n)
            },
        }
    }

    fn batched(case: &Case, layout: Layout) -> Self {
        let Shape { m, k, n } = case.shape;
        let gap = match layout {
            Layout::Strided => 11,
            Layout::InOut | Layout::OutIn => 1,
        };
        let [lhs, rhs, out] = layout.places();
        let lhs = Stack::spaced(INNER, (m, k), lhs, gap);
        let rhs = Stack::spaced(OUTER, (k, n), rhs, gap);
        let out = Stack::spaced(OUTER * INNER, (m, n), out, gap);
        let gemm = Gemm::matmul(case.shape, case.dtype)
            .with_tier(case.tier)
            .with_views(lhs.view, rhs.view, out.view)
            .with_batch(BatchDim {
                len: OUTER,
                lhs_stride: 0,
                rhs_stride: rhs.stride,
                out_stride: INNER * out.stride,
            })
            .with_batch(BatchDim {
                len: INNER,
                lhs_stride: lhs.stride,
                rhs_stride: 0,
                out_stride: out.stride,
            });
        let fill = |operand, len| case.fill(operand, case.dtype, len);
        Prepared::Batched {
            gemm,
            lhs: Placed::new(&fill("lhs", INNER * m * k), lhs, 0),
            rhs: Placed::new(&fill("rhs", OUTER * k * n), rhs, 0),
            out: Placed::new(&blank(case.dtype, OUTER * INNER * m * n), out, TAIL),
        }
    }

    /// Computes the case and hashes the output.
    pub fn run(&self, engine: &dyn Engine) -> String {
        let done = |result: sgemm_bi_core::Result<()>| {
            if let Err(error) = result {
                panic!("{}: {error}: {self:?}", engine.name());
            }
        };
        match self {
            Prepared::Product(problem) => {
                let dtype = problem.gemm.out_dtype();
                hash(dtype, &problem.shape(), &problem.run(engine))
            }
            Prepared::BiasGradient { problem, dy, db } => {
                let mut db = db.clone();
                done(engine.bias_gradient(problem, dy.buffer.as_ref(), db.as_mut()));
                hash(Dtype::F32, &[db.len()], &db.all_bits())
            }
            Prepared::Batched {
                gemm,
                lhs,
                rhs,
                out,
            } => {
                let (lhs, rhs, mut out) = (lhs.buffer.as_ref(), rhs.buffer.as_ref(), out.clone());
                done(engine.gemm(gemm, Operands::new(lhs, rhs, out.buffer.as_mut())));
                out.assert_canaries(&engine.name());
                let shape = [OUTER, INNER, gemm.rows(), gemm.cols()];
                hash(gemm.out_dtype(), &shape, &out.bits())
            }
        }
    }
}

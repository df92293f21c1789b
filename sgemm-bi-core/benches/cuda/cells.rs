//! The rows of the table: which products.

use sgemm_bi_core::{Dtype, Gemm, Op, Shape, WeightLayout};

/// (M, K, N) of a linear layer over M rows.
const SHAPES: [(usize, usize, usize); 11] = [
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (8192, 4096, 14336),
    (65536, 1024, 1024),
    (4096, 1536, 3072),
    (2048, 768, 3072),
    (2048, 768, 512),
    (512, 4096, 4096),
    (64, 4096, 4096),
    (513, 384, 769),
    (1000, 1000, 1000),
];

/// (K, N) of a layer over one row and over sixteen.
const WEIGHTS: [(usize, usize); 3] = [(4096, 4096), (4096, 14336), (14336, 4096)];

/// One product of a linear layer.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub shape: Shape,
    pub op: Op,
    pub layout: WeightLayout,
    pub dtype: Dtype,
}

/// Every row.
pub fn all() -> Vec<Cell> {
    let few = [1, 16].into_iter();
    let few = few.flat_map(|m| WEIGHTS.map(|(k, n)| (m, k, n)));
    let shapes = SHAPES.into_iter().chain(few);
    let dtypes = [Dtype::F32, Dtype::BF16, Dtype::F16];
    let mut cells = Vec::new();
    for (dtype, (m, k, n)) in dtypes
        .into_iter()
        .flat_map(|dtype| shapes.clone().map(move |shape| (dtype, shape)))
    {
        let layouts = [WeightLayout::InOut, WeightLayout::OutIn];
        let mut add = |op, layout| {
            let shape = Shape { m, k, n };
            cells.push(Cell {
                shape,
                op,
                layout,
                dtype,
            });
        };
        for layout in layouts {
            add(Op::Forward, layout);
        }
        if m > 16 {
            for layout in layouts {
                add(Op::InputGradient, layout);
            }
            add(Op::WeightGradient, WeightLayout::OutIn);
        }
    }
    cells
}

impl Cell {
    /// The product as the engine takes it. A weight gradient is f32.
    pub fn gemm(&self) -> Gemm {
        match self.op {
            Op::InputGradient => Gemm::input_gradient(self.shape, self.dtype, self.layout),
            Op::WeightGradient => Gemm::weight_gradient(self.shape, self.dtype, self.layout),
            _ => Gemm::forward(self.shape, self.dtype, self.layout),
        }
    }

    pub fn with_dtype(self, dtype: Dtype) -> Self {
        Cell { dtype, ..self }
    }

    pub fn name(&self) -> String {
        format!("{} {}", self.shape_name(), self.operation_name())
    }

    pub fn shape_name(&self) -> String {
        let Shape { m, k, n } = self.shape;
        format!("{m}x{k}x{n}")
    }

    pub fn operation_name(&self) -> String {
        let layout = match self.layout {
            WeightLayout::InOut => "[in,out]",
            WeightLayout::OutIn => "[out,in]",
        };
        match self.op {
            Op::InputGradient => format!("dX {layout}"),
            Op::WeightGradient => "dW".to_owned(),
            _ => format!("fwd {layout}"),
        }
    }

    /// Floating-point operations: two for each multiply-add.
    pub fn flops(&self) -> f64 {
        let Shape { m, k, n } = self.shape;
        2.0 * m as f64 * k as f64 * n as f64
    }

    /// Elements of the first operand, the second and the output.
    pub fn lens(&self) -> [usize; 3] {
        let gemm = self.gemm();
        let (rows, cols, reduction) = (gemm.rows(), gemm.cols(), gemm.reduction());
        [rows * reduction, reduction * cols, rows * cols]
    }

    /// Bytes that must move: every operand read once, the output written once.
    pub fn bytes(&self) -> f64 {
        let [lhs, rhs, out] = self.lens();
        let out = out * self.gemm().out_dtype().size_in_bytes();
        ((lhs + rhs) * self.dtype.size_in_bytes() + out) as f64
    }
}

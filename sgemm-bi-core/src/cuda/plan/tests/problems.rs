//! Problems to plan: random ones, and those that make a sample of the kernels' instances.

use super::*;

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// A product of any sizes, strides, batch and epilogue; its output nested in any order, with gaps.
pub fn random(random: &mut Random) -> Gemm {
    let dtype = random.pick(&[Dtype::F32, Dtype::BF16, Dtype::F16]);
    let sizes = [0, 1, 1, 2, 3, 8, 16, 17, 40];
    let (m, n) = (random.pick(&sizes), random.pick(&sizes));
    let k = random.pick(&[0, 1, 2, 7, 4096, 4097, 20000]);
    let lens: Vec<usize> = (0..random.below(6))
        .map(|_| random.pick(&[1, 2, 2, 3]))
        .collect();
    let mut gemm = match random.below(3) {
        0 => Gemm::matmul(Shape { m, k, n }, dtype),
        1 => Gemm::forward(Shape { m, k, n }, dtype, WeightLayout::OutIn),
        _ => {
            Gemm::forward(Shape { m, k, n }, dtype, WeightLayout::InOut).with_out_dtype(Dtype::F32)
        }
    };
    if random.below(2) == 0 {
        gemm = gemm.with_bias(random.pick(&[dtype, Dtype::F32]));
    }
    if gemm.out_dtype() == Dtype::F32 && random.below(2) == 0 {
        gemm = gemm.accumulating();
    }
    let mut order: Vec<usize> = (0..lens.len() + 2).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i + 1));
    }
    let size = |dim: usize| [&lens[..], &[m, n]].concat()[dim].max(1);
    let gaps = random.below(2);
    let (mut strides, mut step) = (vec![0; order.len()], 1);
    for dim in order {
        strides[dim] = step;
        step = step * size(dim) + gaps * random.below(2);
    }
    let dense = random.below(2) == 0;
    let mut stride = |dense_stride: usize| match dense {
        true => dense_stride,
        false => random.pick(&[0, 1, 3, dense_stride]),
    };
    let view = |row_stride, col_stride| View {
        offset: 5,
        row_stride,
        col_stride,
    };
    let (lhs, rhs) = (view(stride(k), stride(1)), view(stride(n), stride(1)));
    let out = view(strides[lens.len()], strides[lens.len() + 1]);
    gemm = gemm.with_views(lhs, rhs, out);
    for (i, &len) in lens.iter().enumerate() {
        gemm = gemm.with_batch(BatchDim {
            len,
            lhs_stride: stride(m * k),
            rhs_stride: stride(0),
            out_stride: strides[i],
        });
    }
    gemm
}

/// Instances of every kernel, as plans choose them: each tile, few rows and bias gradients, in
/// every dtype, in several layouts, split or not.
pub fn sample(arch: u32) -> Vec<Instance> {
    let gpu = Gpu { arch, ..H200 };
    let mut plans = Vec::new();
    for dtype in [Dtype::F32, Dtype::BF16, Dtype::F16] {
        let shape = |m, k, n| Shape { m, k, n };
        let (in_out, out_in) = (WeightLayout::InOut, WeightLayout::OutIn);
        for gemm in [
            Gemm::forward(shape(70, 70, 70), dtype, out_in).with_bias(dtype),
            Gemm::forward(shape(4096, 64, 4096), dtype, in_out).with_bias(dtype),
            Gemm::forward(shape(1, 9000, 64), dtype, in_out),
            Gemm::forward(shape(16, 64, 33), dtype, out_in),
            Gemm::weight_gradient(shape(9000, 512, 512), dtype, in_out),
        ] {
            plans.push(plan(Form::of(&gemm), kinds(&gemm), ALIGNED, gpu));
        }
        let problem = BiasGradient::new(64, 40, dtype);
        let kinds = Kinds {
            element: dtype,
            out: Dtype::F32,
            bias: None,
            accumulate: false,
            ones: true,
        };
        plans.push(plan(Form::of_bias_gradient(&problem), kinds, ALIGNED, gpu));
    }
    let mut instances: Vec<Instance> = Vec::new();
    for step in plans.into_iter().flat_map(|plan| plan.steps) {
        if !instances.contains(&step.instance) {
            instances.push(step.instance);
        }
    }
    instances
}

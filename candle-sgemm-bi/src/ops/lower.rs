//! From named axes and Candle's layouts to the core's problem: rows, columns, one reduction, and
//! batch dimensions for the rest.

use candle_core::{Layout, Shape};
use sgemm_bi_core::{BatchDim, Gemm, Op, View};

use super::contraction::{Axis, Contraction};
use crate::error::Error;
use crate::storage::{Dense, EngineStorage, Name, Part, output_len};

/// Computes a contraction; the result is dense and row-major.
pub(super) fn run<S: EngineStorage>(
    contraction: &Contraction,
    lhs: (&S, &Layout),
    rhs: (&S, &Layout),
    bias: Option<(&S, &Layout)>,
) -> Result<(S, Shape), Error> {
    let op = contraction.op.name();
    let lhs = Operand::new(op, "lhs", &contraction.lhs, lhs)?;
    let rhs = Operand::new(op, "rhs", &contraction.rhs, rhs)?;
    let names = Names::new(op, contraction, &lhs, &rhs)?;

    let mut copies = (None, None);
    let lhs = lhs.with_one_reduction_stride(&names, &mut copies.0)?;
    let rhs = rhs.with_one_reduction_stride(&names, &mut copies.1)?;

    let shape: Vec<usize> = contraction
        .out
        .iter()
        .map(|&axis| names.size(axis))
        .collect();
    let len = output_len(op, &shape)?;
    let out = Strides::dense(&contraction.out, &shape);

    let mut gemm = names.gemm(contraction, &lhs, &rhs, &out);
    let bias = match bias {
        None => None,
        Some((storage, layout)) => {
            let argument = "bias";
            gemm = gemm.with_bias(Name { op, argument }.core_dtype(storage.dtype())?);
            Some(Dense::new(op, argument, storage, layout)?)
        }
    };
    let bias = bias.as_ref().map(Dense::part);
    let storage = S::gemm(&gemm, lhs.part(), rhs.part(), bias, len)?;
    Ok((storage, Shape::from(shape)))
}

/// Drops dimensions of size 1 and joins neighbours that one stride describes, outermost first.
pub(super) fn merge(dims: impl IntoIterator<Item = BatchDim>) -> Vec<BatchDim> {
    let mut merged: Vec<BatchDim> = Vec::new();
    for dim in dims.into_iter().filter(|dim| dim.len != 1) {
        let strides = |dim: &BatchDim| [dim.lhs_stride, dim.rhs_stride, dim.out_stride];
        match merged.last_mut() {
            Some(outer)
                if dim.len == 0
                    || outer.len == 0
                    || strides(outer)
                        .into_iter()
                        .zip(strides(&dim))
                        .all(|(outer, inner)| Some(outer) == inner.checked_mul(dim.len)) =>
            {
                // Saturates only for a result that `output_len` has refused.
                *outer = BatchDim {
                    len: outer.len.saturating_mul(dim.len),
                    ..dim
                };
            }
            _ => merged.push(dim),
        }
    }
    merged
}

/// The stride of each name in one tensor.
struct Strides(Vec<(usize, usize)>);

impl Strides {
    fn new(axes: &[Axis], strides: &[usize]) -> Self {
        let named = axes
            .iter()
            .zip(strides)
            .filter_map(|(axis, &stride)| match axis {
                Axis::Named(name) => Some((*name, stride)),
                Axis::Unit => None,
            });
        Strides(named.collect())
    }

    fn dense(axes: &[Axis], shape: &[usize]) -> Self {
        let mut stride = 1usize;
        let mut strides = vec![0; shape.len()];
        for (to, &size) in strides.iter_mut().zip(shape).rev() {
            *to = stride;
            stride = stride.saturating_mul(size);
        }
        Strides::new(axes, &strides)
    }

    fn get(&self, name: usize) -> Option<usize> {
        self.0
            .iter()
            .find(|(of, _)| *of == name)
            .map(|&(_, stride)| stride)
    }

    /// The stride along a name; 0, a broadcast, along one that the tensor lacks.
    fn along(&self, name: usize) -> usize {
        self.get(name).unwrap_or(0)
    }
}

/// One tensor of a contraction as it lies in memory.
struct Operand<'a, S> {
    name: Name,
    dtype: sgemm_bi_core::Dtype,
    axes: &'a [Axis],
    dims: &'a [usize],
    storage: &'a S,
    offset: usize,
    strides: Strides,
}

impl<'a, S: EngineStorage> Operand<'a, S> {
    fn new(
        op: &'static str,
        argument: &'static str,
        axes: &'a [Axis],
        (storage, layout): (&'a S, &'a Layout),
    ) -> Result<Self, Error> {
        let name = Name { op, argument };
        Ok(Operand {
            name,
            dtype: name.core_dtype(storage.dtype())?,
            axes,
            dims: layout.dims(),
            storage,
            offset: layout.start_offset(),
            strides: Strides::new(axes, layout.stride()),
        })
    }

    /// This operand, or a dense copy of it when its summed indices have no single stride.
    ///
    /// A weight is never copied: the indices summed over it are one axis in every operation that
    /// reads it.
    fn with_one_reduction_stride<'b>(
        self,
        names: &Names,
        copy: &'b mut Option<S>,
    ) -> Result<Operand<'b, S>, Error>
    where
        'a: 'b,
    {
        let summed = names.of(Role::Reduction).map(|(name, len)| BatchDim {
            len,
            lhs_stride: self.strides.along(name),
            rhs_stride: 0,
            out_stride: 0,
        });
        if merge(summed).len() <= 1 {
            return Ok(self);
        }
        // Batch outermost, then the summed indices side by side, then rows or columns.
        let kept = [Role::Batch, Role::Reduction, Role::Rows, Role::Cols]
            .into_iter()
            .flat_map(|role| names.of(role))
            .filter_map(|(name, len)| Some((name, len, self.strides.get(name)?)));
        let kept: Vec<_> = kept.collect();
        let dims: Vec<usize> = kept.iter().map(|&(_, len, _)| len).collect();
        let strides: Vec<usize> = kept.iter().map(|&(_, _, stride)| stride).collect();
        let axes: Vec<Axis> = kept.iter().map(|&(name, _, _)| Axis::Named(name)).collect();
        let dense = Strides::dense(&axes, &dims);
        let layout = Layout::new(Shape::from(dims), strides, self.offset);
        let copy = copy.insert(self.storage.gathered(&layout)?);
        Ok(Operand {
            storage: copy,
            offset: 0,
            strides: dense,
            ..self
        })
    }

    fn part(&self) -> Part<'_, S> {
        Part {
            name: self.name,
            storage: self.storage,
            range: 0..self.storage.len(),
        }
    }
}

/// What an index does in a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Both operands and the result have it.
    Batch,
    /// The first operand and the result have it.
    Rows,
    /// The second operand and the result have it.
    Cols,
    /// Only the operands have it.
    Reduction,
}

/// Every name of a contraction in ascending order, with its role and size.
struct Names(Vec<(usize, Role, usize)>);

impl Names {
    fn new<S: EngineStorage>(
        op: &'static str,
        contraction: &Contraction,
        lhs: &Operand<'_, S>,
        rhs: &Operand<'_, S>,
    ) -> Result<Self, Error> {
        let mut names: Vec<(usize, Role, usize)> = Vec::new();
        for operand in [lhs, rhs] {
            if operand.axes.len() != operand.dims.len() {
                return Err(mismatch(
                    op,
                    operand,
                    format!("{} dimensions", operand.axes.len()),
                ));
            }
            for (axis, &len) in operand.axes.iter().zip(operand.dims) {
                let Axis::Named(name) = *axis else { continue };
                let has = |axes: &[Axis]| axes.contains(&Axis::Named(name));
                let role = match (has(lhs.axes), has(rhs.axes), has(&contraction.out)) {
                    (true, true, true) => Role::Batch,
                    (true, false, _) => Role::Rows,
                    (false, _, _) => Role::Cols,
                    (true, true, false) => Role::Reduction,
                };
                match names.iter().find(|&&(known, ..)| known == name) {
                    None => names.push((name, role, len)),
                    Some(&(_, _, known)) if known == len => {}
                    Some(&(_, _, known)) => {
                        let expected = format!("size {known} where it has size {len}");
                        return Err(mismatch(op, operand, expected));
                    }
                }
            }
        }
        names.sort_unstable_by_key(|&(name, ..)| name);
        Ok(Names(names))
    }

    fn of(&self, role: Role) -> impl Iterator<Item = (usize, usize)> {
        let with_role = self.0.iter().filter(move |&&(_, of, _)| of == role);
        with_role.map(|&(name, _, len)| (name, len))
    }

    fn size(&self, axis: Axis) -> usize {
        let Axis::Named(name) = axis else { return 1 };
        let known = self.0.iter().find(|&&(known, ..)| known == name);
        known.map_or(1, |&(_, _, len)| len)
    }

    /// The problem for the core.
    fn gemm<S: EngineStorage>(
        &self,
        contraction: &Contraction,
        lhs: &Operand<'_, S>,
        rhs: &Operand<'_, S>,
        out: &Strides,
    ) -> Gemm {
        let dims = |role| {
            merge(self.of(role).map(|(name, len)| BatchDim {
                len,
                lhs_stride: lhs.strides.along(name),
                rhs_stride: rhs.strides.along(name),
                out_stride: out.along(name),
            }))
        };
        let mut batch = dims(Role::Batch);
        let (rows, outer_rows) = split_longest(dims(Role::Rows));
        let (cols, outer_cols) = split_longest(dims(Role::Cols));
        let (summed, _) = split_longest(dims(Role::Reduction));
        batch.extend(outer_rows);
        batch.extend(outer_cols);

        let dtype = lhs.dtype;
        let gemm = product(contraction.op, [rows.len, summed.len, cols.len], dtype)
            .with_out_dtype(dtype)
            .with_tier(contraction.tier)
            .with_views(
                View {
                    offset: lhs.offset,
                    row_stride: rows.lhs_stride,
                    col_stride: summed.lhs_stride,
                },
                View {
                    offset: rhs.offset,
                    row_stride: summed.rhs_stride,
                    col_stride: cols.rhs_stride,
                },
                View {
                    offset: 0,
                    row_stride: rows.out_stride,
                    col_stride: cols.out_stride,
                },
            );
        batch.into_iter().fold(gemm, Gemm::with_batch)
    }
}

/// The product `[rows, summed] · [summed, cols]` under the name of an operation.
fn product(op: Op, [rows, summed, cols]: [usize; 3], dtype: sgemm_bi_core::Dtype) -> Gemm {
    use sgemm_bi_core::{Shape, WeightLayout::InOut};
    let shape = |m, k, n| Shape { m, k, n };
    match op {
        Op::Forward => Gemm::forward(shape(rows, summed, cols), dtype, InOut),
        Op::InputGradient => Gemm::input_gradient(shape(rows, cols, summed), dtype, InOut),
        Op::WeightGradient => Gemm::weight_gradient(shape(summed, rows, cols), dtype, InOut),
        _ => Gemm::matmul(shape(rows, summed, cols), dtype),
    }
}

/// The longest dimension, which the core blocks and threads over, and the others.
fn split_longest(mut dims: Vec<BatchDim>) -> (BatchDim, Vec<BatchDim>) {
    let longest = (0..dims.len()).max_by_key(|&i| dims[i].len);
    let one = BatchDim {
        len: 1,
        lhs_stride: 0,
        rhs_stride: 0,
        out_stride: 0,
    };
    let longest = longest.map_or(one, |i| dims.remove(i));
    (longest, dims)
}

fn mismatch<S>(op: &'static str, operand: &Operand<'_, S>, expected: String) -> Error {
    Error::Shape {
        op,
        argument: operand.name.argument,
        expected,
        got: operand.dims.to_vec(),
    }
}

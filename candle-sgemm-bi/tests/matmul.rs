//! `functional::matmul` against the contract written naively: vectors, batches, broadcasting,
//! strides, zero sizes, gradients of broadcast operands.

mod common;

use candle_core::{DType, Tensor, Var};
use candle_sgemm_bi::{Tier, functional, matmul};
use common::*;

/// A dense operand seen as `[batch.., rows, cols]`, indexed by the result's batch indices.
struct Matrices {
    values: Vec<f32>,
    batch: Vec<usize>,
    rows: usize,
    cols: usize,
}

impl Matrices {
    fn new(tensor: &Tensor, vector: [usize; 2]) -> Self {
        let dims = tensor.dims();
        let (batch, [rows, cols]) = match *dims {
            [_] => (vec![], vector),
            [ref batch @ .., rows, cols] => (batch.to_vec(), [rows, cols]),
            [] => panic!("a scalar"),
        };
        let values = values(tensor);
        Matrices {
            values,
            batch,
            rows,
            cols,
        }
    }

    /// Index of the first element of the matrix that the result's batch entry reads.
    fn start(&self, entry: &[usize]) -> usize {
        let entry = &entry[entry.len() - self.batch.len()..];
        let index = entry.iter().zip(&self.batch).fold(0, |at, (&i, &size)| {
            at * size + if size == 1 { 0 } else { i }
        });
        index * self.rows * self.cols
    }
}

/// Every index of an array of these sizes, in row-major order.
fn indices(dims: &[usize]) -> Vec<Vec<usize>> {
    dims.iter().fold(vec![vec![]], |all, &size| {
        let extend = |index: Vec<usize>| (0..size).map(move |i| [&index[..], &[i]].concat());
        all.into_iter().flat_map(extend).collect()
    })
}

/// c, da and db before rounding, and the result's batch dimensions.
fn naive(a: &Tensor, b: &Tensor, dc: &[f32]) -> ([Vec<f32>; 3], Vec<usize>) {
    let k = *a.dims().last().unwrap();
    let (a, b) = (Matrices::new(a, [1, k]), Matrices::new(b, [k, 1]));
    let depth = a.batch.len().max(b.batch.len());
    let pad = |batch: &[usize]| [&vec![1; depth - batch.len()][..], batch].concat();
    let (pa, pb) = (pad(&a.batch), pad(&b.batch));
    let batch: Vec<usize> = pa
        .iter()
        .zip(&pb)
        .map(|(&x, &y)| if x == 1 { y } else { x })
        .collect();
    let entries = indices(&batch);
    let (m, n) = (a.rows, b.cols);

    let mut c = Vec::new();
    for entry in &entries {
        let (ai, bi) = (a.start(entry), b.start(entry));
        for (i, j) in (0..m * n).map(|at| (at / n, at % n)) {
            c.push(dot(k, |r| {
                (a.values[ai + i * k + r], b.values[bi + r * n + j])
            }));
        }
    }
    // One reduction over every entry that reads the element, then the matrix dimension.
    let gradient =
        |of: &Matrices, inner: usize, term: &dyn Fn(usize, usize, usize, usize) -> (f32, f32)| {
            let size = of.rows * of.cols;
            let element = |at: usize| {
                let start = at / size * size;
                let readers: Vec<usize> = (0..entries.len())
                    .filter(|&e| of.start(&entries[e]) == start)
                    .collect();
                dot(readers.len() * inner, |r| {
                    term(
                        readers[r / inner],
                        r % inner,
                        at % size / of.cols,
                        at % of.cols,
                    )
                })
            };
            (0..of.values.len()).map(element).collect::<Vec<f32>>()
        };
    let da = gradient(&a, n, &|e, r, row, col| {
        (
            dc[e * m * n + row * n + r],
            b.values[b.start(&entries[e]) + col * n + r],
        )
    });
    let db = gradient(&b, m, &|e, r, row, col| {
        (
            a.values[a.start(&entries[e]) + r * k + row],
            dc[e * m * n + r * n + col],
        )
    });
    ([c, da, db], batch)
}

fn check(a: &Tensor, b: &Tensor) {
    let what = format!(
        "{:?}{:?} x {:?}{:?}",
        a.dims(),
        a.stride(),
        b.dims(),
        b.stride()
    );
    let (va, vb) = (Var::from_tensor(a).unwrap(), Var::from_tensor(b).unwrap());
    let c = matmul(&va, &vb).unwrap();
    let dc = random(9, c.dims(), a.dtype());
    let ([expected, da, db], mut dims) = naive(a, b, &values(&dc));
    if a.rank() > 1 {
        dims.push(a.dims()[a.rank() - 2]);
    }
    if b.rank() > 1 {
        dims.push(b.dims()[b.rank() - 1]);
    }
    assert_rounded(&format!("{what}: c"), &c, &dims, &expected);
    // The operands as they are given: strides, offsets and broadcasts.
    let raw = functional::matmul(a, b, Tier::Scalar).unwrap();
    assert_same(&format!("{what}: raw"), &raw, &c);
    assert!(raw.is_contiguous() && raw.layout().start_offset() == 0);

    let grads = backward(&c, &dc);
    for (name, var, expected) in [("da", &va, &da), ("db", &vb, &db)] {
        let grad = grads.get(var).unwrap();
        assert_eq!(grad.dtype(), a.dtype());
        assert_rounded(&format!("{what}: {name}"), grad, var.dims(), expected);
    }
}

#[test]
fn ranks_and_broadcasting() {
    let pairs: [(&[usize], &[usize]); 20] = [
        (&[4], &[4]),
        (&[4], &[4, 3]),
        (&[2, 4], &[4]),
        (&[4], &[2, 4, 3]),
        (&[2, 3, 4], &[4]),
        (&[2, 4], &[4, 3]),
        (&[1, 1], &[1, 1]),
        (&[5, 2, 4], &[5, 4, 3]),
        (&[5, 2, 4], &[4, 3]),
        (&[2, 4], &[5, 4, 3]),
        (&[1, 2, 4], &[5, 4, 3]),
        (&[5, 2, 4], &[1, 4, 3]),
        (&[1, 2, 4], &[1, 4, 3]),
        (&[2, 1, 2, 4], &[3, 4, 3]),
        (&[2, 3, 2, 4], &[3, 4, 3]),
        (&[2, 3, 2, 4], &[2, 1, 4, 3]),
        (&[2, 1, 2, 4], &[1, 3, 4, 3]),
        (&[2, 3, 2, 2, 4], &[2, 1, 2, 4, 3]),
        (&[2, 1, 2, 1, 4], &[3, 1, 4, 2]),
        (&[2, 1, 2, 1, 2, 3], &[3, 1, 2, 3, 2]),
    ];
    for (a, b) in pairs {
        for dtype in DTYPES {
            check(&random(1, a, dtype), &random(2, b, dtype));
        }
    }
}

#[test]
fn zero_sizes() {
    let pairs: [(&[usize], &[usize]); 10] = [
        (&[0], &[0]),
        (&[0], &[0, 3]),
        (&[2, 0], &[0, 3]),
        (&[0, 4], &[4, 3]),
        (&[2, 4], &[4, 0]),
        (&[0, 2, 4], &[4, 3]),
        (&[0, 2, 4], &[1, 4, 3]),
        (&[3, 2, 0], &[1, 0, 3]),
        (&[3, 0, 2, 4], &[3, 1, 4, 2]),
        (&[1, 0, 2, 0], &[3, 1, 0, 2]),
    ];
    for (a, b) in pairs {
        for dtype in DTYPES {
            check(&random(1, a, dtype), &random(2, b, dtype));
        }
    }
}

#[test]
fn strides_and_offsets() {
    for dtype in DTYPES {
        let (a, b) = (
            random(1, (3, 6, 5, 4), dtype),
            random(2, (3, 6, 4, 5), dtype),
        );
        let at = a.transpose(2, 3).unwrap();
        check(&at, &b.transpose(2, 3).unwrap());
        check(&a.transpose(0, 1).unwrap(), &b.transpose(0, 1).unwrap());
        check(
            &a.permute((3, 1, 0, 2)).unwrap(),
            &random(3, (6, 5, 2), dtype),
        );
        check(&a.narrow(1, 2, 3).unwrap(), &b.narrow(1, 3, 3).unwrap());
        check(&a.narrow(3, 1, 2).unwrap(), &b.narrow(2, 2, 2).unwrap());
        let one = random(4, (1, 1, 5, 4), dtype);
        check(&one.broadcast_as((3, 6, 5, 4)).unwrap(), &b);
        check(
            &random(5, (1, 4), dtype).broadcast_as((2, 4)).unwrap(),
            &random(6, (4, 3), dtype),
        );
        check(
            &random(5, (2, 1), dtype).broadcast_as((2, 4)).unwrap(),
            &random(6, (4, 3), dtype),
        );
    }
}

#[test]
fn a_shared_weight_gets_the_gradient_of_linear() {
    // 3·1,500 rows: more than one chunk, and not a whole number of batch entries in one.
    for dtype in DTYPES {
        let (x, w) = (random(1, (3, 1500, 2), dtype), variable(2, (2, 3), dtype));
        let dy = random(3, (3, 1500, 3), dtype);
        let layout = candle_sgemm_bi::WeightLayout::InOut;
        let y = functional::linear(&x, &w, None, layout, Tier::Scalar).unwrap();
        let expected = backward(&y, &dy).remove(w.as_tensor()).unwrap();
        let c = matmul(&x, &w).unwrap();
        assert_same("forward", &c, &y);
        assert_same(
            "dw",
            &backward(&c, &dy).remove(w.as_tensor()).unwrap(),
            &expected,
        );
        let unsqueezed = matmul(&x, &w.unsqueeze(0).unwrap()).unwrap();
        let got = backward(&unsqueezed, &dy).remove(w.as_tensor()).unwrap();
        assert_same("dw of [1, k, n]", &got, &expected);
    }
}

#[test]
fn one_tensor_may_be_both_operands() {
    let a = variable(1, (5, 5), DType::F32);
    let copies = [
        Var::from_tensor(&a.copy().unwrap()).unwrap(),
        Var::from_tensor(&a.copy().unwrap()).unwrap(),
    ];
    let dc = random(2, (5, 5), DType::F32);
    let c = matmul(&a, &a.t().unwrap()).unwrap();
    let apart = matmul(&copies[0], &copies[1].t().unwrap()).unwrap();
    assert_same("c", &c, &apart);
    let (got, expected) = (backward(&c, &dc), backward(&apart, &dc));
    let [da, db] = copies.each_ref().map(|copy| expected.get(copy).unwrap());
    assert_same(
        "sum of gradients",
        got.get(&a).unwrap(),
        &(da + db).unwrap(),
    );
    assert_same(
        "squared",
        &matmul(&a, &a).unwrap(),
        &matmul(&copies[0], &copies[1]).unwrap(),
    );
}

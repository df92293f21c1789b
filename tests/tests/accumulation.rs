//! Gradient accumulation: what a split at multiples of 4096 rows promises (contract section 3).

use sgemm_bi_core::contract::CHUNK;
use sgemm_bi_core::{BiasGradient, Dtype, Gemm, Operands, Shape, WeightLayout};
use sgemm_bi_tests::compare::{assert_bits, compare_bits};
use sgemm_bi_tests::{Buffer, Data, Engine, Reference, engines};

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::BF16, Dtype::F16];
const K: usize = 5;
const N: usize = 18;

/// dW and db of `m` rows, computed in the given parts; the first part overwrites.
fn gradients(engine: &dyn Engine, x: &Buffer, dy: &Buffer, parts: &[usize]) -> (Buffer, Buffer) {
    let canary = |len| Buffer::from_bits(Dtype::F32, len, |_| 0xDEAD_BEEF);
    let (mut dw, mut db) = (canary(K * N), canary(N));
    let mut row = 0;
    for (i, &rows) in parts.iter().enumerate() {
        let x_part = x.slice(row * K..(row + rows) * K);
        let dy_part = dy.slice(row * N..(row + rows) * N);
        row += rows;
        let shape = Shape {
            m: rows,
            k: K,
            n: N,
        };
        let mut product = Gemm::weight_gradient(shape, x.dtype(), WeightLayout::OutIn);
        let mut sum = BiasGradient::new(rows, N, dy.dtype());
        if i > 0 {
            product = product.accumulating();
            sum = sum.accumulating();
        }
        let operands = Operands::new(x_part.as_ref(), dy_part.as_ref(), dw.as_mut());
        engine.gemm(&product, operands).unwrap();
        engine
            .bias_gradient(&sum, dy_part.as_ref(), db.as_mut())
            .unwrap();
    }
    assert_eq!(row * K, x.len());
    (dw, db)
}

#[test]
fn a_split_at_chunk_boundaries_changes_nothing() {
    let m = 3 * CHUNK + 77;
    let splits: [&[usize]; 6] = [
        &[m],
        &[CHUNK, 2 * CHUNK + 77],
        &[2 * CHUNK, CHUNK + 77],
        &[3 * CHUNK, 77],
        &[CHUNK, CHUNK, CHUNK, 77],
        &[CHUNK, 0, 2 * CHUNK, 0, 77],
    ];
    for dtype in DTYPES {
        for data in [Data::Normal, Data::Wide, Data::Tiny] {
            let (x, dy) = (data.fill(dtype, m * K, 1), data.fill(dtype, m * N, 2));
            let (dw, db) = gradients(&Reference, &x, &dy, &[m]);
            for engine in engines() {
                for parts in splits {
                    let (got_dw, got_db) = gradients(&engine, &x, &dy, parts);
                    let what = format!("{}, {dtype} {data:?}, {parts:?}", engine.name());
                    let shape = [N, K];
                    assert_bits(
                        &what,
                        Dtype::F32,
                        &shape,
                        &got_dw.all_bits(),
                        &dw.all_bits(),
                    );
                    assert_bits(&what, Dtype::F32, &[N], &got_db.all_bits(), &db.all_bits());
                }
            }
        }
    }
}

/// The same along K: a reduction split over devices can be finished in order.
#[test]
fn a_forward_product_can_be_finished_chunk_by_chunk() {
    let (m, k, n) = (3, 2 * CHUNK + 9, 17);
    let dtype = Dtype::BF16;
    let x = Data::Normal.fill(dtype, m * k, 1);
    let w = Data::Normal.fill(dtype, k * n, 2);
    for engine in engines() {
        let mut whole = Buffer::from_bits(Dtype::F32, m * n, |_| 0);
        let forward = |k| {
            let shape = Shape { m, k, n };
            Gemm::forward(shape, dtype, WeightLayout::InOut).with_out_dtype(Dtype::F32)
        };
        engine
            .gemm(
                &forward(k),
                Operands::new(x.as_ref(), w.as_ref(), whole.as_mut()),
            )
            .unwrap();
        let mut parts = Buffer::from_bits(Dtype::F32, m * n, |_| 0);
        for first in (0..k).step_by(CHUNK) {
            let part = forward(CHUNK.min(k - first));
            let lhs = sgemm_bi_core::View {
                row_stride: k,
                ..part.lhs()
            }
            .at(first);
            let (rhs, out) = (part.rhs().at(first * n), part.out());
            let part = part.with_views(lhs, rhs, out).accumulating();
            let operands = Operands::new(x.as_ref(), w.as_ref(), parts.as_mut());
            engine.gemm(&part, operands).unwrap();
        }
        let name = engine.name();
        assert_bits(
            &name,
            Dtype::F32,
            &[m, n],
            &parts.all_bits(),
            &whole.all_bits(),
        );
    }
}

/// Splitting anywhere else is not promised, and here is why: the part's own sum starts from +0.0.
#[test]
fn a_split_inside_a_chunk_may_change_bits() {
    let m = CHUNK;
    // 2^24, then ones: each is lost to the tie in one chain; alone, 2048 of them add up first.
    let x = Buffer::from(vec![1.0f32; m * K]);
    let mut dy = vec![1.0f32; m * N];
    dy[..N].fill(16_777_216.0);
    let dy = Buffer::from(dy);
    let (dw, db) = gradients(&Reference, &x, &dy, &[m]);
    let (split_dw, split_db) = gradients(&Reference, &x, &dy, &[m / 2, m / 2]);
    let whole = [16_777_216.0f32.to_bits(); N * K];
    let split = [16_779_264.0f32.to_bits(); N * K];
    assert_bits(
        "dW in one call",
        Dtype::F32,
        &[N, K],
        &dw.all_bits(),
        &whole,
    );
    assert_bits(
        "db in one call",
        Dtype::F32,
        &[N],
        &db.all_bits(),
        &whole[..N],
    );
    assert_bits(
        "dW in two calls",
        Dtype::F32,
        &[N, K],
        &split_dw.all_bits(),
        &split,
    );
    assert_bits(
        "db in two calls",
        Dtype::F32,
        &[N],
        &split_db.all_bits(),
        &split[..N],
    );

    // With ordinary data too.
    let (x, dy) = (
        Data::Normal.fill(Dtype::F32, m * K, 1),
        Data::Normal.fill(Dtype::F32, m * N, 2),
    );
    let (dw, _) = gradients(&Reference, &x, &dy, &[m]);
    let (split, _) = gradients(&Reference, &x, &dy, &[m / 2, m / 2]);
    assert!(compare_bits(Dtype::F32, &[N, K], &split.all_bits(), &dw.all_bits()).is_err());
}

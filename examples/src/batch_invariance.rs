//! Counts the outputs of a row that change when the row is part of a batch: Candle's matmul and
//! this project's, on random operands.

use std::collections::BTreeSet;

use candle_core::{DType, Device, Result, Tensor};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Batch sizes that the first row is multiplied in, after a batch of its own.
const BATCHES: [usize; 7] = [2, 3, 8, 17, 33, 64, 257];

/// Layer sizes: inputs, outputs.
const LAYERS: [(usize, usize); 3] = [(768, 768), (1024, 512), (768, 3072)];

fn main() -> Result<()> {
    println!("Outputs of row 0 that change in at least one batch of {BATCHES:?} rows:\n");
    println!("| x · wᵀ | type | candle 0.11.1 | sgemm-bi |");
    println!("|---|---|---|---|");
    for (k, n) in LAYERS {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let mut rng = ChaCha20Rng::from_seed([7; 32]);
            let rows = BATCHES[BATCHES.len() - 1];
            let x = uniform(&mut rng, (rows, k), dtype)?;
            let w = uniform(&mut rng, (n, k), dtype)?.t()?;
            let candle = changed(&x, |x| x.matmul(&w))?;
            let ours = changed(&x, |x| candle_sgemm_bi::matmul(x, &w))?;
            let dtype = dtype.as_str();
            println!("| {k} → {n} | {dtype} | {candle} of {n} | {ours} of {n} |");
        }
    }
    Ok(())
}

/// Numbers in [−1, 1), rounded to a dtype.
fn uniform(rng: &mut ChaCha20Rng, shape: (usize, usize), dtype: DType) -> Result<Tensor> {
    let draw = |_| (rng.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0;
    let values: Vec<f32> = (0..shape.0 * shape.1).map(draw).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)
}

/// How many elements of the first row of `product(x)` have other bits in some batch than alone.
fn changed(x: &Tensor, product: impl Fn(&Tensor) -> Result<Tensor>) -> Result<usize> {
    let first_row = |rows: usize| -> Result<Vec<u32>> {
        let y = product(&x.narrow(0, 0, rows)?)?;
        let row = y.get(0)?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
        Ok(row.into_iter().map(f32::to_bits).collect())
    };
    let alone = first_row(1)?;
    let mut changed = BTreeSet::new();
    for rows in BATCHES {
        let together = first_row(rows)?;
        changed.extend((0..alone.len()).filter(|&i| alone[i] != together[i]));
    }
    Ok(changed.len())
}

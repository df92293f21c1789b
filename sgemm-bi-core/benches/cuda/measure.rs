//! One row: check, then contenders in turn.

use std::error::Error;

use cudarc::driver::CudaGraph;
use sgemm_bi_core::Dtype;
use sgemm_bi_core::cuda::CudaOperands;

use crate::cells::Cell;
use crate::device::{Buffer, Device};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Seconds of calls in a recording, at least.
const RECORDED: f64 = 300e-6;

/// Most calls of a recording.
const MOST_CALLS: usize = 64;

/// Elements of the output that are checked.
const CHECKED: usize = 64;

/// A row's figures.
pub struct Outcome {
    /// cuBLAS's f32 time over ours.
    pub to_cublas: f64,
    /// Our f32 time over ours.
    pub to_f32: f64,
    /// Our time.
    pub seconds: f64,
    pub limit: Limit,
}

/// The least time that the device needs, and for what.
pub struct Limit {
    pub name: &'static str,
    pub seconds: f64,
}

pub fn run(device: &Device, cell: &Cell, pairs: usize) -> Result<Outcome> {
    let mut ours = Operands::new(device, cell)?;
    ours.check(device)?;
    let mine = ours.record(device)?;
    let mut f32_operands = match cell.dtype {
        Dtype::F32 => None,
        _ => Some(Operands::new(device, &cell.with_dtype(Dtype::F32))?),
    };
    let as_f32 = match &mut f32_operands {
        None => None,
        Some(operands) => Some(operands.record(device)?),
    };
    let theirs = f32_operands
        .as_ref()
        .unwrap_or(&ours)
        .record_cublas(device)?;
    let mut contenders = vec![&mine, &theirs];
    contenders.extend(as_f32.as_ref());
    let times = take_turns(device, &contenders, pairs)?;
    let ratios = |other: usize| median(times.iter().map(|t| t[other] / t[0]).collect());
    Ok(Outcome {
        to_cublas: ratios(1),
        to_f32: if as_f32.is_some() { ratios(2) } else { 1.0 },
        seconds: median(times.iter().map(|t| t[0]).collect()),
        limit: limit(device, cell),
    })
}

fn limit(device: &Device, cell: &Cell) -> Limit {
    let arithmetic = cell.flops() / device.peak_flops;
    let memory = cell.bytes() / device.copy_rate;
    if arithmetic > memory {
        Limit {
            name: "arithmetic",
            seconds: arithmetic,
        }
    } else {
        Limit {
            name: "memory",
            seconds: memory,
        }
    }
}

/// Recorded calls of a contender.
struct Recording {
    graph: CudaGraph,
    calls: usize,
}

/// Seconds for one call of each contender, round by round.
fn take_turns(device: &Device, contenders: &[&Recording], rounds: usize) -> Result<Vec<Vec<f64>>> {
    let mut times = Vec::new();
    for round in 0..rounds + 1 {
        let mut seconds = vec![0.0; contenders.len()];
        for turn in 0..contenders.len() {
            let at = match round % 2 {
                0 => turn,
                _ => contenders.len() - 1 - turn,
            };
            let Recording { graph, calls } = contenders[at];
            seconds[at] = device.time(|| Ok(graph.launch()?))? / *calls as f64;
        }
        if round > 0 {
            times.push(seconds);
        }
    }
    Ok(times)
}

/// Copies of a product's operands.
struct Operands {
    cell: Cell,
    sets: Vec<[Buffer; 3]>,
}

/// Where in the values a set's operands begin.
fn offsets(set: usize) -> [usize; 2] {
    [set * 1_000_003, 2_000_029 + set * 999_983]
}

impl Operands {
    fn new(device: &Device, cell: &Cell) -> Result<Self> {
        let [lhs, rhs, out] = cell.lens();
        let copies = (3.0 * device.cache_bytes as f64 / cell.bytes()).ceil();
        let out_dtype = cell.gemm().out_dtype();
        let set = |set| -> Result<[Buffer; 3]> {
            let [lhs_offset, rhs_offset] = offsets(set);
            Ok([
                device.random(cell.dtype, lhs, lhs_offset)?,
                device.random(cell.dtype, rhs, rhs_offset)?,
                device.zeros(out_dtype, out)?,
            ])
        };
        let sets = (0..(copies as usize).clamp(1, MOST_CALLS)).map(set);
        Ok(Operands {
            cell: *cell,
            sets: sets.collect::<Result<_>>()?,
        })
    }

    fn call(&mut self, device: &Device, set: usize) -> Result<()> {
        let [lhs, rhs, out] = &mut self.sets[set];
        let operands = CudaOperands::new(lhs.slice(), rhs.slice(), out.slice_mut());
        Ok(device.engine.gemm(&self.cell.gemm(), operands)?)
    }

    /// Compares elements of our result, spread over it, with the contract's chain.
    fn check(&mut self, device: &Device) -> Result<()> {
        let set = self.sets.len() - 1;
        self.call(device, set)?;
        let gemm = self.cell.gemm();
        for sample in 0..CHECKED {
            let row = sample * 7919 * 31 % gemm.rows();
            let col = (sample * 104_729 + sample / 8) % gemm.cols();
            let at = row * gemm.out().row_stride + col * gemm.out().col_stride;
            let got = self.sets[set][2].element(device.stream(), at)?;
            let expected = device.values.product(&gemm, offsets(set), row, col);
            if got.to_bits() != expected.to_bits() {
                let name = self.cell.name();
                return Err(format!("{name}: [{row}, {col}] is {got:?}, not {expected:?}").into());
            }
        }
        Ok(())
    }

    /// How many calls a recording needs, by the time of a few.
    fn calls(&self, seconds: f64) -> usize {
        let enough = (RECORDED / seconds).ceil() as usize;
        enough.clamp(self.sets.len(), MOST_CALLS)
    }

    fn record(&mut self, device: &Device) -> Result<Recording> {
        self.call(device, 0)?;
        let seconds = device.time(|| self.call(device, 0))?;
        let calls = self.calls(seconds);
        let graph = device
            .record(|| (0..calls).try_for_each(|call| self.call(device, call % self.sets.len())))?;
        Ok(Recording { graph, calls })
    }

    fn record_cublas(&self, device: &Device) -> Result<Recording> {
        let gemm = self.cell.gemm();
        let call = |call: usize| -> Result<()> {
            let set = &self.sets[call % self.sets.len()];
            let [lhs, rhs, out] = set.each_ref().map(|b| b.address(device.stream()));
            // SAFETY: the operands' memory, in the same stream.
            Ok(unsafe { device.cublas.gemm(&gemm, lhs, rhs, out) }?)
        };
        call(0)?;
        let calls = self.calls(device.time(|| call(0))?);
        let graph = device.record(|| (0..calls).try_for_each(call))?;
        Ok(Recording { graph, calls })
    }
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

//! The GPU benchmark: our engine against cuBLAS in f32 (TF32 off), contenders taking turns.
//!
//! ```text
//! cargo bench -p sgemm-bi-core --features cuda --bench cuda -- [--filter TEXT] [--dtype DTYPE]
//!     [--pairs N] [--seconds S] [--markdown] [--startup]
//! ```
//!
//! How it measures:
//! - What is timed is [`CudaEngine::gemm`], with whatever kernels it chooses. Each contender's calls
//!   are recorded in a CUDA graph, enough of them for 300 µs or more, so that neither waits for the
//!   host; events on the stream time a replay.
//! - A round gives each contender one turn, the order is reversed from round to round, and the
//!   figure is the median over rounds of their time over ours inside a round.
//! - Operands are random. Calls rotate over copies of the operands that together exceed three times
//!   the L2 cache, as the layers of a model do.
//! - Before a row is timed, sampled elements of our result are compared, bit for bit, with chains
//!   computed here. A row whose bits are wrong ends the program.
//! - 16-bit rows compare with our own f32, and with cuBLAS's.
//!
//! Needs, at run time, a GPU, its driver, NVRTC, and libcublas, which `SGEMM_BI_CUBLAS` may name.

mod cells;
mod chain;
mod cublas;
mod device;
mod measure;
mod startup;

use std::time::{Duration, Instant};

use clap::Parser;
use sgemm_bi_core::Dtype;

use cells::Cell;
use device::Device;
use measure::Outcome;

/// Ours against cuBLAS in f32; the ratio is their time over ours.
#[derive(Parser)]
struct Options {
    /// Runs only the rows whose name contains this text, e.g. "4096x4096x4096" or "dW".
    #[arg(long, default_value = "")]
    filter: String,
    /// Runs only the rows of this dtype: f32, bf16 or f16.
    #[arg(long)]
    dtype: Option<String>,
    /// Rounds per row; at least 3.
    #[arg(long, default_value_t = 21)]
    pairs: usize,
    /// Starts no row after this many seconds.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Prints a Markdown table.
    #[arg(long)]
    markdown: bool,
    /// Times the start of an engine and what a call costs the host, instead of products.
    #[arg(long)]
    startup: bool,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let begin = Instant::now();
    let options = Options::parse();
    if options.startup {
        return startup::run(begin);
    }
    let device = Device::open()?;
    println!("{}", device.description()?);
    let table = Table(options.markdown);
    table.header();
    let wanted = |cell: &Cell| {
        let dtype = options.dtype.as_deref();
        cell.name().contains(&options.filter)
            && dtype.is_none_or(|dtype| cell.dtype.to_string() == dtype)
    };
    let cells: Vec<Cell> = cells::all().into_iter().filter(wanted).collect();
    for (done, cell) in cells.iter().enumerate() {
        if begin.elapsed() > Duration::from_secs(options.seconds) {
            println!("out of time: {} rows left out", cells.len() - done);
            break;
        }
        table.row(cell, &measure::run(&device, cell, options.pairs.max(3))?);
    }
    Ok(())
}

/// The printed table.
struct Table(bool);

impl Table {
    fn header(&self) {
        let columns = [
            "M×K×N",
            "dtype",
            "operation",
            "ratio",
            "our f32",
            "TFLOP/s",
            "TB/s",
            "of the limit",
            "time",
        ];
        self.line(&columns.map(str::to_owned));
        if self.0 {
            self.line(&columns.map(|_| "---".to_owned()));
        }
    }

    fn row(&self, cell: &Cell, outcome: &Outcome) {
        let limit = &outcome.limit;
        self.line(&[
            cell.shape_name(),
            cell.dtype.to_string(),
            cell.operation_name(),
            format!("{:.2}", outcome.to_cublas),
            match cell.dtype {
                Dtype::F32 => "–".to_owned(),
                _ => format!("{:.2}", outcome.to_f32),
            },
            format!("{:.1}", cell.flops() / outcome.seconds / 1e12),
            format!("{:.2}", cell.bytes() / outcome.seconds / 1e12),
            format!(
                "{:.0}% {}",
                100.0 * limit.seconds / outcome.seconds,
                limit.name
            ),
            format!("{:.1} µs", 1e6 * outcome.seconds),
        ]);
    }

    fn line(&self, cells: &[String; 9]) {
        if self.0 {
            println!("| {} |", cells.join(" | "));
        } else {
            let widths = [17, 5, 13, 6, 8, 8, 6, 17, 12];
            let padded = cells.iter().zip(widths);
            let padded: Vec<_> = padded
                .map(|(cell, width)| format!("{cell:>width$}"))
                .collect();
            println!("{}", padded.join(" "));
        }
    }
}

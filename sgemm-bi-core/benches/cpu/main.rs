//! The CPU benchmark: our engine against the `gemm` crate and OpenBLAS, contenders taking turns.
//!
//! ```text
//! cargo bench -p sgemm-bi-core --bench cpu -- [--threads N] [--filter TEXT] [--pairs N]
//!     [--simd LEVEL] [--f32-only] [--markdown] [--replay]
//! ```
//!
//! How it measures, and why not with criterion: criterion finishes one contender before it starts
//! the next, so a change of clock or a neighbour's load between the two becomes part of the ratio.
//! Here every round gives each contender one turn on the same operands, the order is reversed from
//! round to round, and the figure is the median over rounds of (their time / our time) inside a
//! round. A turn calls the contender until 25 ms have passed, at least once, and keeps the fastest
//! call; a row starts with one untimed round.
//!
//! What is fair:
//! - Operands are random, uniform in ±1. Products whose weight is read once (M ≤ 16, and the weight
//!   gradient of such batches, which writes it once) rotate over copies of the weight that together
//!   exceed 640 MiB: in a model the weights of the other layers have passed through the cache since
//!   the last use. Larger products reuse their operands in place.
//! - One thread: every contender runs on the calling thread. More threads: ours and the `gemm` crate
//!   share rayon's global pool.
//!   OpenBLAS has threads of its own, which keep spinning for some 30 ms after a call and would
//!   slow whoever comes next, so a threaded turn of OpenBLAS is followed by a pause of 60 ms.
//! - The `gemm` crate is called with the arguments and the features of candle-core 0.11, under which
//!   it uses AVX2 and FMA at most. `--features bench-gemm-avx512` builds it with its AVX-512
//!   kernels: cargo unifies features, so one binary holds one of the two, and the header says which.
//! - OpenBLAS is the library inside numpy's wheel (`SGEMM_BI_OPENBLAS` names another file); the
//!   header prints its version and the kernels that it chose.

mod contenders;
mod measure;
mod openblas;
mod replay;
mod rows;

use clap::Parser;
use sgemm_bi_core::cpu::Simd;
use sgemm_bi_core::{CpuEngine, Dtype};

use contenders::{Contender, GemmCrate, Ours};
use measure::Outcome;

/// Ours against the `gemm` crate and OpenBLAS; the ratio is their time over ours.
#[derive(Parser)]
struct Options {
    /// Threads of every contender.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Runs only the rows whose name contains this text, e.g. "1x4096x4096" or "dW".
    #[arg(long)]
    filter: Option<String>,
    /// Leaves out the bf16 and f16 rows, which have no contender but our own f32.
    #[arg(long)]
    f32_only: bool,
    /// Rounds per row; at least 3.
    #[arg(long, default_value_t = 9)]
    pairs: usize,
    /// Our SIMD level: portable, avx2 or avx512. The best one if absent.
    #[arg(long)]
    simd: Option<String>,
    /// Prints a Markdown table.
    #[arg(long)]
    markdown: bool,
    /// Times the tensor-core tier's replay instead, at every SIMD level.
    #[arg(long)]
    replay: bool,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse();
    let threads = options.threads.max(1);
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global()?;
    if options.replay {
        return replay::run(options.pairs.max(3));
    }
    let mut engine = CpuEngine::new()?;
    if let Some(name) = &options.simd {
        let known = Simd::available().find(|simd| simd.name() == name);
        engine = engine.with_simd(known.ok_or(format!("no SIMD level {name:?} here"))?)?;
    }

    println!("ours: {}, threads: {threads}", engine.simd());
    let ours = Ours::new(engine);
    let mut others: Vec<Box<dyn Contender>> = vec![Box::new(GemmCrate::new(threads))];
    println!("gemm crate: {}", GemmCrate::LEVEL);
    match openblas::OpenBlas::open(threads) {
        Ok(library) => {
            println!("OpenBLAS: {}", library.description());
            others.push(Box::new(library));
        }
        Err(why) => println!("OpenBLAS: skipped: {why}"),
    }

    let table = Table::new(options.markdown, &others);
    let wanted = |row: &rows::Row| {
        let filter = options.filter.as_deref().unwrap_or("");
        row.name().contains(filter) && (row.dtype == Dtype::F32 || !options.f32_only)
    };
    for row in rows::all() {
        if wanted(&row) {
            let outcome = measure::run(&row, &ours, &others, options.pairs.max(3));
            table.print(&row, &outcome);
        }
    }
    Ok(())
}

/// The printed table.
struct Table {
    markdown: bool,
}

impl Table {
    fn new(markdown: bool, others: &[Box<dyn Contender>]) -> Self {
        let names = others.iter().map(|other| other.name());
        let columns = ["M×K×N", "operation", "time", "speed", "memory"];
        let columns: Vec<_> = columns
            .into_iter()
            .chain(names)
            .chain(["our f32"])
            .collect();
        let table = Table { markdown };
        println!();
        table.line(&columns);
        if markdown {
            table.line(&vec!["---"; columns.len()]);
        }
        table
    }

    fn print(&self, row: &rows::Row, outcome: &Outcome) {
        let mut cells = vec![row.shape_name(), row.operation_name()];
        let seconds = outcome.time.as_secs_f64();
        cells.push(format!("{:.3} ms", 1e3 * seconds));
        cells.push(format!("{:.1} GFLOP/s", row.flops() / seconds / 1e9));
        cells.push(format!("{:.1} GB/s", row.bytes() / seconds / 1e9));
        for ratio in &outcome.ratios {
            cells.push(match ratio {
                Some(ratio) => format!("{ratio:.2}"),
                None => "–".into(),
            });
        }
        self.line(&cells.iter().map(String::as_str).collect::<Vec<_>>());
    }

    fn line(&self, cells: &[&str]) {
        if self.markdown {
            println!("| {} |", cells.join(" | "));
        } else {
            let padded: Vec<_> = cells.iter().map(|cell| format!("{cell:<17}")).collect();
            println!("{}", padded.join(" ").trim_end());
        }
    }
}

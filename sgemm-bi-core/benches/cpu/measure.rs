//! Turns, rounds and the median of paired ratios.

use std::time::{Duration, Instant};

use sgemm_bi_core::{Dtype, Gemm};

use crate::contenders::{Contender, Ours};
use crate::rows::{Data, Row};

/// A turn calls its contender until this much time has passed.
const TURN: Duration = Duration::from_millis(25);

/// What one row showed.
pub struct Outcome {
    /// Our fastest call in the median round.
    pub time: Duration,
    /// Median of (their time / our time), one for each other contender and one for our own f32;
    /// none where a contender has no such product.
    pub ratios: Vec<Option<f64>>,
}

/// Measures a row in `rounds` rounds.
pub fn run(row: &Row, ours: &Ours, others: &[Box<dyn Contender>], rounds: usize) -> Outcome {
    let mut problem = Problem::new(row, row.dtype);
    let mut in_f32 = (row.dtype != Dtype::F32).then(|| Problem::new(row, Dtype::F32));
    let contenders = 1 + others.len() + 1;
    let mut turn = |index: usize| match index {
        0 => problem.turn(ours),
        _ if index <= others.len() => problem.turn(others[index - 1].as_ref()),
        _ => in_f32.as_mut().and_then(|problem| problem.turn(ours)),
    };
    let mut times = vec![Vec::new(); contenders];
    for round in 0..=rounds {
        for position in 0..contenders {
            let index = match round % 2 {
                0 => position,
                _ => contenders - 1 - position,
            };
            let time = turn(index);
            if round > 0 {
                times[index].push(time);
            }
        }
    }
    let seconds = |times: &[Option<Duration>]| -> Option<Vec<f64>> {
        let times = times.iter().copied().collect::<Option<Vec<_>>>()?;
        Some(times.iter().map(Duration::as_secs_f64).collect())
    };
    let our_times = seconds(&times[0]).expect("our engine has every product");
    let ratios = times[1..].iter().map(|theirs| {
        let pairs = seconds(theirs)?.into_iter().zip(&our_times);
        Some(median(pairs.map(|(theirs, ours)| theirs / ours).collect()))
    });
    Outcome {
        ratios: ratios.collect(),
        time: Duration::from_secs_f64(median(our_times)),
    }
}

/// A row's operands in one dtype; matrices that stand for a weight come in several copies.
struct Problem {
    gemm: Gemm,
    lhs: Vec<Data>,
    rhs: Vec<Data>,
    out: Vec<Data>,
    calls: usize,
}

impl Problem {
    fn new(row: &Row, dtype: Dtype) -> Self {
        let gemm = row.gemm(dtype);
        let copies = row.weight_copies(dtype);
        let (rhs_copies, out_copies) = match row.writes_weight() {
            true => (1, copies),
            false => (copies, 1),
        };
        let make = |len, dtype, seed, copies| vec![Data::random(len, dtype, seed); copies];
        let (rows, cols, r) = (gemm.rows(), gemm.cols(), gemm.reduction());
        Problem {
            lhs: make(rows * r, dtype, 1 << 40, 1),
            rhs: make(r * cols, dtype, 2 << 40, rhs_copies),
            out: make(rows * cols, gemm.out_dtype(), 3 << 40, out_copies),
            calls: 0,
            gemm,
        }
    }

    /// The fastest call of one turn.
    fn turn(&mut self, contender: &dyn Contender) -> Option<Duration> {
        let mut fastest = None;
        let start = Instant::now();
        while fastest.is_none() || start.elapsed() < TURN {
            self.calls += 1;
            let lhs = self.lhs[0].as_slice();
            let rhs = self.rhs[self.calls % self.rhs.len()].as_slice();
            let at = self.calls % self.out.len();
            let out = self.out[at].as_mut_slice();
            let called = Instant::now();
            if !contender.multiply(&self.gemm, lhs, rhs, out) {
                return None;
            }
            let time = called.elapsed();
            fastest = Some(fastest.map_or(time, |best: Duration| best.min(time)));
        }
        contender.rest();
        fastest
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

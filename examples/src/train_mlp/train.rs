//! A training run, from the arguments to the hash of the weights.

use std::io::{self, Write};
use std::time::Instant;

use candle_core::{Device, Tensor};
use candle_nn::Optimizer;
use candle_sgemm_bi::Sgd;
use candle_sgemm_bi::loss::cross_entropy;
use indicatif::{ProgressBar, ProgressStyle};
use sgemm_bi_core::CpuEngine;

use crate::args::{Settings, TrainArgs};
use crate::data::{Digits, PIXELS, Split};
use crate::error::Error;
use crate::hash::hash;
use crate::model::{Mlp, correct};
use crate::outputs::Outputs;
use crate::report;
use crate::rng::Rng;

/// Trains, saves the weights, prints their hash, and fails if it is not the expected one.
pub fn run(args: &TrainArgs, settings: Settings) -> Result<(), Error> {
    if let Some(threads) = args.threads {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.into());
        pool.build_global()?;
    }
    // Refuses a wrong SGEMM_BI_SIMD before any work.
    let simd = CpuEngine::new()?.simd();
    let device = args.device.device()?;
    let outputs = Outputs::open(&args.out, args.audit.as_deref())?;

    let started = Instant::now();
    let mut trainer = Trainer::new(settings, device, outputs)?;
    let progress = progress_bar(trainer.steps());
    let epochs = settings.epochs;
    for epoch in 1..=epochs {
        let loss = trainer.epoch(&progress)?;
        let accuracy = trainer.accuracy()?;
        let line = format!("epoch {epoch}/{epochs}: loss {loss:.6}, test accuracy {accuracy}");
        progress.suspend(|| writeln!(io::stdout(), "{line}"))?;
    }
    progress.finish_and_clear();
    let seconds = started.elapsed().as_secs_f64();
    let threads = rayon::current_num_threads();
    report(&format!(
        "trained in {seconds:.2} s on {}, SIMD level {simd}, threads: {threads}",
        args.device
    ));

    let accuracy = trainer.accuracy()?;
    let parameters = trainer.model.parameters()?;
    trainer.outputs.finish(&parameters)?;
    let got = hash(&parameters);
    let mut stdout = io::stdout();
    writeln!(stdout, "weights saved to {}", args.out.display())?;
    writeln!(stdout, "test accuracy {accuracy}")?;
    writeln!(stdout, "BLAKE3 of the weights: {got}")?;
    match args.expect {
        Some(expected) if expected != got => Err(Error::Mismatch { expected, got }),
        _ => Ok(()),
    }
}

/// A run between two epochs.
struct Trainer {
    settings: Settings,
    device: Device,
    digits: Digits,
    /// The training images are in the order of the last epoch.
    split: Split,
    rng: Rng,
    model: Mlp,
    optimizer: Sgd,
    outputs: Outputs,
    /// Steps done.
    step: u64,
}

impl Trainer {
    /// Draws the split and the weights, in this order.
    fn new(settings: Settings, device: Device, mut outputs: Outputs) -> Result<Self, Error> {
        let digits = Digits::bundled()?;
        let mut rng = Rng::new(settings.seed);
        let split = digits.split(&mut rng);
        let model = Mlp::new(&settings, &device, &mut rng)?;
        outputs.begin(&settings, &model)?;
        Ok(Trainer {
            optimizer: Sgd::new(model.vars(), settings.lr.into())?,
            settings,
            device,
            digits,
            split,
            rng,
            model,
            outputs,
            step: 0,
        })
    }

    /// Steps of the whole run.
    fn steps(&self) -> u64 {
        let steps_per_epoch = self.split.train.len().div_ceil(self.settings.batch);
        u64::from(self.settings.epochs) * steps_per_epoch as u64
    }

    /// Shuffles the training images and takes a step on each batch; the mean loss of the steps.
    fn epoch(&mut self, progress: &ProgressBar) -> Result<f64, Error> {
        self.rng.shuffle(&mut self.split.train);
        let mut losses = Vec::new();
        for indices in self.split.train.chunks(self.settings.batch) {
            let logits = self.model.forward(&self.images(indices)?)?;
            let labels = self.digits.labels(indices);
            let labels = Tensor::from_vec(labels, indices.len(), &self.device)?;
            let loss = cross_entropy(&logits, &labels)?;
            self.optimizer.backward_step(&loss)?;
            self.step += 1;
            let loss = loss.to_scalar::<f32>()?;
            self.outputs.step(self.step, loss, &self.model)?;
            losses.push(f64::from(loss));
            progress.inc(1);
        }
        Ok(losses.iter().sum::<f64>() / losses.len() as f64)
    }

    /// The share of the test images that the model recognises.
    fn accuracy(&self) -> Result<Share, Error> {
        let test = &self.split.test;
        let logits = self.model.forward(&self.images(test)?)?;
        Ok(Share {
            part: correct(&logits, &self.digits.labels(test))?,
            whole: test.len(),
        })
    }

    /// The images at `indices` as a tensor `[rows, 64]`.
    fn images(&self, indices: &[u32]) -> candle_core::Result<Tensor> {
        let shape = (indices.len(), PIXELS);
        Tensor::from_vec(self.digits.pixels(indices), shape, &self.device)
    }
}

/// A share of a count, shown in per cent and as the counts.
struct Share {
    part: usize,
    whole: usize,
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Share { part, whole } = self;
        let percent = 100.0 * *part as f64 / *whole as f64;
        write!(f, "{percent:.2}% ({part}/{whole})")
    }
}

/// A progress bar on stderr; hidden when stderr is no terminal.
fn progress_bar(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} step {pos}/{len}, {eta} left");
    let bar = ProgressBar::new(steps);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

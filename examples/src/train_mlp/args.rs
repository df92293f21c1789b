//! The command line.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use sgemm_bi_core::TensorCoreModel;

/// Trains a classifier of handwritten digits to the same bits on every machine.
///
/// Three linear layers (64 → 128 → 64 → 10) with relu and cross-entropy learn the 1,797 digits of
/// 8×8 pixels bundled with the program, by plain gradient descent. The weights' BLAKE3 hash, the
/// last line printed, depends on --epochs, --batch, --dtype, --tier, --lr, --seed and the version of
/// the bit contract, and on nothing else: not on the machine, its SIMD level or the number of threads, and not on --device.
///
/// Every random number comes from the ChaCha20 keystream of RFC 8439 (key: the seed's 8
/// little-endian bytes, then zeros; nonce 0; counter from 0), drawn in this order: the split, the
/// weights, the order of the training images in each epoch.
///
/// Epochs, accuracy and hash are printed to stdout, progress and time to stderr.
#[derive(Debug, Parser)]
#[command(
    name = "train-mlp",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "Exit status: 0 done; 1 the hash is not the expected one, or an error; 2 wrong usage.\n\
                  SGEMM_BI_SIMD=portable|avx2|avx512 forces a SIMD level; every level gives the same bits."
)]
pub struct Cli {
    /// What to do instead of training.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// How to train.
    #[command(flatten)]
    pub train: TrainArgs,
}

/// What can be done instead of training.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Names the first step at which two audits part.
    ///
    /// Exit status: 0 identical, 1 they differ, 2 one cannot be read.
    Diff {
        /// An audit, as written by --audit.
        a: PathBuf,
        /// Another.
        b: PathBuf,
    },
}

/// Options of a training run.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// Passes over the training images; 0 saves the initial weights.
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub epochs: u32,

    /// Images in a step; the last step of an epoch takes what is left.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = batch)]
    pub batch: usize,

    /// Type in which the products are computed; the weights themselves are f32 throughout.
    #[arg(long, value_enum, default_value_t = Dtype::F32)]
    pub dtype: Dtype,

    /// Arithmetic of the products; that of tensor cores is replayed, slowly, and needs bf16 or f16.
    #[arg(long, value_enum, default_value_t = Tier::Scalar)]
    pub tier: Tier,

    /// Where to compute: cpu, cuda, or cuda:N for the GPU with ordinal N. The same bits everywhere.
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = place)]
    pub device: Place,

    /// Threads; by default RAYON_NUM_THREADS, or one for each processor.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// Seed of the split, the initial weights and the order of the images.
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,

    /// Learning rate.
    #[arg(long, value_name = "X", default_value_t = 0.2, value_parser = learning_rate)]
    pub lr: f32,

    /// Where to save the weights, in safetensors format.
    #[arg(long, value_name = "FILE", default_value = "weights.safetensors")]
    pub out: PathBuf,

    /// Writes one line a step: its number, the bits of its loss, the hash of the parameters.
    #[arg(long, value_name = "FILE")]
    pub audit: Option<PathBuf>,

    /// Fails unless the weights' hash is this one (64 hexadecimal digits).
    #[arg(long, value_name = "HASH", value_parser = hash)]
    pub expect: Option<blake3::Hash>,
}

/// The settings that the bits of a run depend on.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Passes over the training images.
    pub epochs: u32,
    /// Images in a step.
    pub batch: usize,
    /// Type of the products.
    pub dtype: Dtype,
    /// Arithmetic of the products.
    pub tier: Tier,
    /// Seed of every random number.
    pub seed: u64,
    /// Learning rate.
    pub lr: f32,
}

impl TrainArgs {
    /// The settings that the bits depend on.
    ///
    /// Errors: a tier that is not defined for the dtype.
    pub fn settings(&self) -> Result<Settings, clap::Error> {
        if self.tier != Tier::Scalar && self.dtype == Dtype::F32 {
            let message = format!("--tier {} needs --dtype bf16 or f16", self.tier);
            return Err(Cli::command().error(ErrorKind::ArgumentConflict, message));
        }
        Ok(Settings {
            epochs: self.epochs,
            batch: self.batch,
            dtype: self.dtype,
            tier: self.tier,
            seed: self.seed,
            lr: self.lr,
        })
    }
}

/// The arithmetic of a product (contract sections 4 and 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Tier {
    /// IEEE fused multiply-adds, one after the other.
    Scalar,
    /// NVIDIA tensor cores of compute capability 8.0, 8.6 and 8.9.
    Ampere,
    /// NVIDIA tensor cores of compute capability 9.0 and 10.0. `tensor-core` names it too.
    #[value(alias = "tensor-core")]
    Hopper,
}

impl From<Tier> for sgemm_bi_core::Tier {
    fn from(tier: Tier) -> Self {
        match tier {
            Tier::Scalar => sgemm_bi_core::Tier::Scalar,
            Tier::Ampere => sgemm_bi_core::Tier::TensorCore(TensorCoreModel::Ampere),
            Tier::Hopper => sgemm_bi_core::Tier::TensorCore(TensorCoreModel::Hopper),
        }
    }
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Tier::Scalar => "scalar",
            Tier::Ampere => "ampere",
            Tier::Hopper => "hopper",
        })
    }
}

/// A device by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The processor.
    Cpu,
    /// The GPU with this ordinal.
    Cuda(usize),
}

impl Place {
    /// The device.
    ///
    /// Errors: Candle's, where there is no such device or the program was built without `cuda`.
    pub fn device(self) -> candle_core::Result<candle_core::Device> {
        match self {
            Place::Cpu => Ok(candle_core::Device::Cpu),
            Place::Cuda(ordinal) => candle_core::Device::new_cuda(ordinal),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Cpu => f.write_str("cpu"),
            Place::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// The type in which a product's operands and result are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dtype {
    /// IEEE binary32.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
}

impl From<Dtype> for candle_core::DType {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => candle_core::DType::F32,
            Dtype::Bf16 => candle_core::DType::BF16,
            Dtype::F16 => candle_core::DType::F16,
        }
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
            Dtype::F16 => "f16",
        })
    }
}

fn batch(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("a step needs at least one image".to_owned()),
        Ok(batch) => Ok(batch),
        Err(error) => Err(error.to_string()),
    }
}

fn place(text: &str) -> Result<Place, String> {
    let ordinal = match text {
        "cpu" => return Ok(Place::Cpu),
        "cuda" => Some(0),
        _ => text
            .strip_prefix("cuda:")
            .and_then(|ordinal| ordinal.parse().ok()),
    };
    let place = ordinal.map(Place::Cuda);
    place.ok_or_else(|| "expected cpu, cuda or cuda:N".to_owned())
}

fn learning_rate(text: &str) -> Result<f32, String> {
    let lr: f32 = text.parse().map_err(|_| "not a number".to_owned())?;
    if lr.is_finite() && lr > 0.0 {
        Ok(lr)
    } else {
        Err(format!("expected a positive finite f32, got {lr}"))
    }
}

fn hash(text: &str) -> Result<blake3::Hash, String> {
    blake3::Hash::from_hex(text).map_err(|error| format!("expected 64 hexadecimal digits: {error}"))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::Cli;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_values_are_refused_by_name() {
        for (arguments, expected) in [
            (["--batch", "0"], "a step needs at least one image"),
            (["--batch", "-1"], "unexpected argument '-1'"),
            (["--epochs", "1.5"], "invalid digit"),
            (["--dtype", "f64"], "possible values: f32, bf16, f16"),
            (
                ["--tier", "volta"],
                "possible values: scalar, ampere, hopper",
            ),
            (["--device", "gpu"], "expected cpu, cuda or cuda:N"),
            (["--device", "cuda:x"], "expected cpu, cuda or cuda:N"),
            (["--threads", "0"], "0 is not in 1..=1024"),
            (["--lr", "nan"], "expected a positive finite f32, got NaN"),
            (["--lr", "0"], "expected a positive finite f32, got 0"),
            (["--lr", "1e39"], "expected a positive finite f32, got inf"),
            (["--lr", "fast"], "not a number"),
            (["--expect", "12ab"], "expected 64 hexadecimal digits"),
        ] {
            let error = Cli::try_parse_from([&["train-mlp"], &arguments[..]].concat());
            let message = error.unwrap_err().to_string();
            assert!(message.contains(expected), "{arguments:?}: {message}");
        }
    }

    #[test]
    fn the_tensor_core_tier_is_the_newest_models() {
        let cli = Cli::try_parse_from(["train-mlp", "--tier", "tensor-core"]).unwrap();
        assert_eq!(cli.train.tier, super::Tier::Hopper);
    }

    #[test]
    fn a_tensor_core_tier_needs_a_16_bit_dtype() {
        let settings = |words: [&str; 5]| Cli::try_parse_from(words).unwrap().train.settings();
        let refused = settings(["train-mlp", "--tier", "hopper", "--dtype", "f32"]);
        let message = refused.unwrap_err().to_string();
        assert!(
            message.contains("--tier hopper needs --dtype bf16 or f16"),
            "{message}"
        );
        assert!(settings(["train-mlp", "--tier", "hopper", "--dtype", "f16"]).is_ok());
    }
}

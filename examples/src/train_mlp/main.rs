//! Trains a classifier of handwritten digits to the same bits on every machine.

mod args;
mod audit;
mod data;
mod diff;
mod error;
mod hash;
mod model;
mod outputs;
mod rng;
mod train;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

/// Exit status of `diff` when the audits differ.
const DIFFERENT: u8 = 1;

/// Exit status of `diff` when an audit cannot be read.
const UNREADABLE: u8 = 2;

fn main() -> ExitCode {
    let cli = args::Cli::parse();
    match cli.command {
        None => {
            let settings = cli.train.settings().unwrap_or_else(|error| error.exit());
            match train::run(&cli.train, settings) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    report(&format!("error: {error}"));
                    ExitCode::FAILURE
                }
            }
        }
        Some(args::Command::Diff { a, b }) => ExitCode::from(diff(&a, &b)),
    }
}

fn diff(a: &Path, b: &Path) -> u8 {
    match diff::compare(a, b) {
        Ok(comparison) => {
            // The exit status says it too, so a closed standard output is no failure.
            let _ = writeln!(io::stdout(), "{comparison}");
            if comparison.is_identical() {
                0
            } else {
                DIFFERENT
            }
        }
        Err(error) => {
            report(&format!("error: {error}"));
            UNREADABLE
        }
    }
}

/// Writes a line to stderr; a closed stderr is no failure.
fn report(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

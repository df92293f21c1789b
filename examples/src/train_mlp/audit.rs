//! The audit file: a header with the run's settings, then one line for each step.
//!
//! ```text
//! # train-mlp audit contract=1 tier=scalar dtype=f32 epochs=30 batch=32 lr=0.2 seed=42 initial=<hash>
//! 1 401b3f6e <hash>
//! 2 4013d2aa <hash>
//! ```
//!
//! `initial` is the hash of the parameters before the first step. A step's line holds its number,
//! counted from 1 over all epochs, the bits of its loss (binary32, eight hexadecimal digits) and
//! the hash of the parameters after it. Hashes are those of [`hash`](crate::hash).

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use sgemm_bi_core::contract::CONTRACT_VERSION;

use crate::args::Settings;

/// What a header starts with.
const MARK: &str = "# train-mlp audit ";

/// Key of the initial parameters' hash in the header.
const INITIAL: &str = "initial";

/// Longer lines are read in pieces, which no audit has: a file of another kind may be one line.
const MAX_LINE: u64 = 4096;

/// Writes an audit.
pub struct AuditWriter {
    file: BufWriter<File>,
}

impl AuditWriter {
    /// An audit in an empty file.
    pub fn new(file: File) -> Self {
        let file = BufWriter::new(file);
        AuditWriter { file }
    }

    /// Writes the header.
    pub fn header(&mut self, settings: &Settings, initial: blake3::Hash) -> io::Result<()> {
        let Settings {
            epochs,
            batch,
            dtype,
            tier,
            seed,
            lr,
        } = settings;
        writeln!(
            self.file,
            "{MARK}contract={CONTRACT_VERSION} tier={tier} dtype={dtype} epochs={epochs} \
             batch={batch} lr={lr} seed={seed} {INITIAL}={initial}"
        )
    }

    /// Writes a step's line.
    pub fn step(&mut self, step: &Step) -> io::Result<()> {
        writeln!(self.file, "{step}")
    }

    /// Writes what is still in memory.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A step's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The step, from 1.
    pub number: u64,
    /// The bits of its loss.
    pub loss: u32,
    /// The parameters' hash after it.
    pub parameters: blake3::Hash,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Step {
            number,
            loss,
            parameters,
        } = self;
        write!(f, "{number} {loss:08x} {parameters}")
    }
}

/// Why an audit cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The system would not read it.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line is not what an audit has there.
    #[error("{}: line {line}: expected {expected}, got {got:?}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What an audit has there.
        expected: String,
        /// The start of the line.
        got: String,
    },
}

/// Reads an audit line by line.
pub struct AuditReader {
    path: PathBuf,
    file: BufReader<File>,
    line: u64,
    /// The settings of the header, in its order.
    pub settings: Vec<(String, String)>,
    /// The hash of the parameters before the first step.
    pub initial: blake3::Hash,
}

impl AuditReader {
    /// Opens an audit and reads its header.
    pub fn open(path: &Path) -> Result<Self, AuditError> {
        let read = |source| AuditError::Read {
            path: path.to_owned(),
            source,
        };
        let mut file = BufReader::new(File::open(path).map_err(read)?);
        let header = read_line(&mut file).map_err(read)?.unwrap_or_default();
        let (settings, initial) = parse_header(&header)
            .ok_or_else(|| malformed(path, 1, "the header of an audit".to_owned(), &header))?;
        Ok(AuditReader {
            path: path.to_owned(),
            file,
            line: 1,
            settings,
            initial,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next step, or `None` after the last one.
    pub fn next_step(&mut self) -> Result<Option<Step>, AuditError> {
        let text = read_line(&mut self.file).map_err(|source| AuditError::Read {
            path: self.path.clone(),
            source,
        })?;
        let Some(text) = text else {
            return Ok(None);
        };
        let number = self.line;
        self.line += 1;
        let step = parse_step(&text).filter(|step| step.number == number);
        let expected = || format!("step {number}, 8 hexadecimal digits of loss and a hash");
        match step {
            Some(step) => Ok(Some(step)),
            None => Err(malformed(&self.path, self.line, expected(), &text)),
        }
    }
}

/// The settings of a header and the initial parameters' hash.
type Header = (Vec<(String, String)>, blake3::Hash);

fn parse_header(header: &str) -> Option<Header> {
    let mut settings = Vec::new();
    let mut initial = None;
    for word in header.strip_prefix(MARK)?.split_ascii_whitespace() {
        let (key, value) = word.split_once('=')?;
        if key == INITIAL {
            initial = Some(value.parse().ok()?);
        } else {
            settings.push((key.to_owned(), value.to_owned()));
        }
    }
    Some((settings, initial?))
}

/// Reads exactly what [`Step`] writes: no sign, no leading zero, no upper-case digit.
fn parse_step(text: &str) -> Option<Step> {
    let mut words = text.split(' ');
    let step = Step {
        number: words.next()?.parse().ok()?,
        loss: u32::from_str_radix(words.next()?, 16).ok()?,
        parameters: words.next()?.parse().ok()?,
    };
    (step.to_string() == text).then_some(step)
}

/// The next line without its end, or `None` at the end of the file.
fn read_line(file: &mut BufReader<File>) -> io::Result<Option<String>> {
    let mut line = String::new();
    if file.take(MAX_LINE).read_line(&mut line)? == 0 {
        return Ok(None);
    }
    if line.ends_with('\n') {
        line.pop();
    }
    Ok(Some(line))
}

fn malformed(path: &Path, line: u64, expected: String, got: &str) -> AuditError {
    AuditError::Malformed {
        path: path.to_owned(),
        line,
        expected,
        // Enough to recognise the line.
        got: got.chars().take(100).collect(),
    }
}

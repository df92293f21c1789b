//! The files that a run writes: the weights and the audit.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorView};

use crate::args::Settings;
use crate::audit::{AuditWriter, Step};
use crate::error::Error;
use crate::hash::{Parameter, hash};
use crate::model::Mlp;

/// The files of a run, found writable before any training.
pub struct Outputs {
    weights: PathBuf,
    audit: Option<Audit>,
}

struct Audit {
    path: PathBuf,
    writer: AuditWriter,
}

impl Outputs {
    /// Checks that `weights` can be written, without changing what is there, and creates `audit`.
    pub fn open(weights: &Path, audit: Option<&Path>) -> Result<Self, Error> {
        let created = check_writable(weights).map_err(|source| weights_error(weights, source))?;
        let audit = audit.map(|audit| open_audit(weights, audit)).transpose();
        if created {
            // A run that fails leaves no empty file.
            std::fs::remove_file(weights).map_err(|source| weights_error(weights, source))?;
        }
        Ok(Outputs {
            weights: weights.to_owned(),
            audit: audit?,
        })
    }

    /// Writes the audit's header.
    pub fn begin(&mut self, settings: &Settings, model: &Mlp) -> Result<(), Error> {
        if let Some(audit) = &mut self.audit {
            let initial = hash(&model.parameters()?);
            let written = audit.writer.header(settings, initial);
            written.map_err(|source| audit_error(&audit.path, source))?;
        }
        Ok(())
    }

    /// Writes the audit's line for a step: its number, its loss, and the model after it.
    pub fn step(&mut self, number: u64, loss: f32, model: &Mlp) -> Result<(), Error> {
        if let Some(audit) = &mut self.audit {
            let step = Step {
                number,
                loss: loss.to_bits(),
                parameters: hash(&model.parameters()?),
            };
            let written = audit.writer.step(&step);
            written.map_err(|source| audit_error(&audit.path, source))?;
        }
        Ok(())
    }

    /// Completes the audit and saves the weights.
    pub fn finish(self, parameters: &[Parameter]) -> Result<(), Error> {
        if let Some(Audit { path, writer }) = self.audit {
            writer
                .finish()
                .map_err(|source| audit_error(&path, source))?;
        }
        let written = std::fs::write(&self.weights, to_safetensors(parameters)?);
        written.map_err(|source| weights_error(&self.weights, source))
    }
}

/// Opens a file for writing and leaves its contents alone; true when it did not exist before.
fn check_writable(path: &Path) -> io::Result<bool> {
    let mut options = OpenOptions::new();
    options.write(true);
    match options.clone().create_new(true).open(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            options.open(path).map(|_| false)
        }
        Err(error) => Err(error),
    }
}

/// Creates the audit, unless it is the file of the weights, which exists.
fn open_audit(weights: &Path, path: &Path) -> Result<Audit, Error> {
    if let (Ok(a), Ok(b)) = (weights.canonicalize(), path.canonicalize())
        && a == b
        && a.is_file()
    {
        let path = path.to_owned();
        return Err(Error::SameFile { path });
    }
    let writer = File::create(path).map_err(|source| audit_error(path, source))?;
    Ok(Audit {
        path: path.to_owned(),
        writer: AuditWriter::new(writer),
    })
}

fn weights_error(path: &Path, source: io::Error) -> Error {
    write_error("--out", path, source)
}

fn audit_error(path: &Path, source: io::Error) -> Error {
    write_error("--audit", path, source)
}

fn write_error(option: &'static str, path: &Path, source: io::Error) -> Error {
    let path = path.to_owned();
    Error::Write {
        option,
        path,
        source,
    }
}

/// The bytes of a safetensors file of `parameters`.
///
/// All parameters are f32, so the format's order (dtype, then name) is that of their names, and
/// there is no metadata: equal parameters make equal files.
fn to_safetensors(parameters: &[Parameter]) -> Result<Vec<u8>, Error> {
    let mut views = Vec::with_capacity(parameters.len());
    for parameter in parameters {
        let shape = parameter.shape.clone();
        let view = TensorView::new(Dtype::F32, shape, &parameter.data)?;
        views.push((parameter.name.as_str(), view));
    }
    Ok(safetensors::serialize(views, None)?)
}

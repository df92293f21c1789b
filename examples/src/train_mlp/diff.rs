//! Compares two audits and names the first step at which they part.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::audit::{AuditError, AuditReader, Step};

/// What a comparison found.
#[derive(Debug)]
pub struct Comparison {
    /// Settings of the two headers that differ, with both values; a missing one is `None`.
    pub settings: Vec<(String, [Option<String>; 2])>,
    /// Whether and where the runs part.
    pub outcome: Outcome,
}

/// Whether and where two runs part.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Same initial parameters, same steps.
    Identical {
        /// How many steps.
        steps: u64,
    },
    /// The runs begin with different parameters.
    Initial {
        /// The hash in each audit.
        hashes: [blake3::Hash; 2],
    },
    /// A step differs and all before it are identical.
    Step {
        /// The step in each audit.
        steps: [Step; 2],
    },
    /// One audit ends while the other, identical so far, goes on.
    Length {
        /// The audit that ends.
        shorter: PathBuf,
        /// The audit that goes on.
        longer: PathBuf,
        /// The steps that both have.
        common: u64,
    },
}

impl Comparison {
    /// True when the runs do not part.
    pub fn is_identical(&self) -> bool {
        matches!(self.outcome, Outcome::Identical { .. })
    }
}

/// Compares the audits at two paths, up to the first difference.
pub fn compare(a: &Path, b: &Path) -> Result<Comparison, AuditError> {
    let mut a = AuditReader::open(a)?;
    let mut b = AuditReader::open(b)?;
    let settings = differing_settings(&a.settings, &b.settings);
    let outcome = first_difference(&mut a, &mut b)?;
    Ok(Comparison { settings, outcome })
}

fn first_difference(a: &mut AuditReader, b: &mut AuditReader) -> Result<Outcome, AuditError> {
    if a.initial != b.initial {
        let hashes = [a.initial, b.initial];
        return Ok(Outcome::Initial { hashes });
    }
    let mut common = 0;
    loop {
        let (shorter, longer) = match (a.next_step()?, b.next_step()?) {
            (None, None) => return Ok(Outcome::Identical { steps: common }),
            (Some(step_a), Some(step_b)) if step_a == step_b => {
                common += 1;
                continue;
            }
            (Some(step_a), Some(step_b)) => {
                let steps = [step_a, step_b];
                return Ok(Outcome::Step { steps });
            }
            (None, Some(_)) => (a.path().to_owned(), b.path().to_owned()),
            (Some(_), None) => (b.path().to_owned(), a.path().to_owned()),
        };
        return Ok(Outcome::Length {
            shorter,
            longer,
            common,
        });
    }
}

fn differing_settings(
    a: &[(String, String)],
    b: &[(String, String)],
) -> Vec<(String, [Option<String>; 2])> {
    let value = |of: &[(String, String)], key: &str| {
        let found = of.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.clone())
    };
    let only_b = b.iter().filter(|(key, _)| value(a, key).is_none());
    let keys = a.iter().chain(only_b).map(|(key, _)| key);
    keys.map(|key| (key.clone(), [value(a, key), value(b, key)]))
        .filter(|(_, [a, b])| a != b)
        .collect()
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, values) in &self.settings {
            let [a, b] = values
                .each_ref()
                .map(|value| value.as_deref().unwrap_or("none"));
            writeln!(f, "setting {key}: {a} and {b}")?;
        }
        self.outcome.fmt(f)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Identical { steps } => write!(f, "identical: {steps} steps"),
            Outcome::Initial { hashes: [a, b] } => {
                writeln!(f, "the audits part at step 0, before any training:")?;
                write!(f, "  initial parameters: {a} and {b}")
            }
            Outcome::Step { steps: [a, b] } => {
                write!(f, "the audits part at step {}:", a.number)?;
                if a.loss != b.loss {
                    let (x, y) = (f32::from_bits(a.loss), f32::from_bits(b.loss));
                    write!(f, "\n  loss: {:08x} ({x}) and {:08x} ({y})", a.loss, b.loss)?;
                }
                if a.parameters != b.parameters {
                    write!(f, "\n  parameters: {} and {}", a.parameters, b.parameters)?;
                }
                Ok(())
            }
            Outcome::Length {
                shorter,
                longer,
                common,
            } => write!(
                f,
                "the lengths differ: {} ends after step {common}, {} goes on with step {}; \
                 identical up to there",
                shorter.display(),
                longer.display(),
                common + 1
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{Comparison, compare};

    const HEADER: &str = "# train-mlp audit contract=1 seed=1 initial=";

    fn hash(text: &str) -> String {
        blake3::hash(text.as_bytes()).to_string()
    }

    /// An audit of the given (loss, parameters) steps.
    fn audit(header: &str, steps: &[(u32, &str)]) -> String {
        let mut text = format!("{header}{}\n", hash("initial"));
        for (index, (loss, parameters)) in steps.iter().enumerate() {
            text += &format!("{} {loss:08x} {}\n", index + 1, hash(parameters));
        }
        text
    }

    /// A file in the system's temporary folder that is deleted when dropped.
    struct TempFile(PathBuf);

    impl TempFile {
        fn new(test: &str, name: &str, text: &[u8]) -> Self {
            let name = format!("train-mlp-{}-{test}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::write(&path, text).unwrap();
            TempFile(path)
        }
    }

    impl Drop for TempFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn compare_texts(test: &str, a: &str, b: &str) -> Result<Comparison, String> {
        let a = TempFile::new(test, "a", a.as_bytes());
        let b = TempFile::new(test, "b", b.as_bytes());
        compare(&a.0, &b.0).map_err(|error| error.to_string())
    }

    #[test]
    fn identical_audits_are_said_to_be_so() {
        let text = audit(HEADER, &[(1, "x"), (2, "y")]);
        let comparison = compare_texts("identical", &text, &text).unwrap();
        assert!(comparison.is_identical());
        assert_eq!(comparison.to_string(), "identical: 2 steps");
    }

    #[test]
    fn the_first_difference_is_named_with_its_field_and_both_values() {
        let a = audit(HEADER, &[(1, "x"), (0x3f800000, "y"), (3, "z")]);
        let b = audit(HEADER, &[(1, "x"), (0x40000000, "y"), (4, "w")]);
        let comparison = compare_texts("loss", &a, &b).unwrap();
        assert!(!comparison.is_identical());
        assert_eq!(
            comparison.to_string(),
            "the audits part at step 2:\n  loss: 3f800000 (1) and 40000000 (2)"
        );
        let b = audit(HEADER, &[(1, "x"), (0x3f800000, "w")]);
        let expected = format!(
            "the audits part at step 2:\n  parameters: {} and {}",
            hash("y"),
            hash("w")
        );
        assert_eq!(
            compare_texts("parameters", &a, &b).unwrap().to_string(),
            expected
        );
    }

    #[test]
    fn different_settings_and_initial_parameters_are_named() {
        let a = audit(HEADER, &[]);
        let b = format!(
            "# train-mlp audit contract=1 seed=2 initial={}\n",
            hash("b")
        );
        let expected = format!(
            "setting seed: 1 and 2\n\
             the audits part at step 0, before any training:\n  initial parameters: {} and {}",
            hash("initial"),
            hash("b")
        );
        assert_eq!(
            compare_texts("initial", &a, &b).unwrap().to_string(),
            expected
        );
    }

    #[test]
    fn a_shorter_audit_is_named() {
        let a = audit(HEADER, &[(1, "x"), (2, "y")]);
        let b = audit(HEADER, &[(1, "x")]);
        for (a, b, ends) in [(&a, &b, "-b"), (&b, &a, "-a")] {
            let comparison = compare_texts("length", a, b).unwrap();
            assert!(!comparison.is_identical());
            let message = comparison.to_string();
            assert!(
                message.contains(&format!("{ends} ends after step 1")),
                "{message}"
            );
        }
    }

    #[test]
    fn what_is_no_audit_is_refused_by_line() {
        let good = audit(HEADER, &[(1, "x")]);
        for (bad, expected) in [
            (
                String::new(),
                "line 1: expected the header of an audit, got \"\"",
            ),
            (
                "0,0,5\n".to_owned(),
                "line 1: expected the header of an audit, got \"0,0,5\"",
            ),
            (
                good.replace("initial=", "initial=x"),
                "line 1: expected the header",
            ),
            (
                good.clone() + "3 00000000 00\n",
                "line 3: expected step 2, 8 hexadecimal digits",
            ),
            (good.replace("\n1 ", "\n2 "), "line 2: expected step 1"),
            (good[..good.len() - 3].to_owned(), "line 2: expected step 1"),
            (
                good.replace("1 00000001", "1 +0000001"),
                "line 2: expected step 1",
            ),
        ] {
            let message = compare_texts("malformed", &good, &bad).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
        let missing = compare("no such audit".as_ref(), "none".as_ref()).unwrap_err();
        assert!(
            missing.to_string().starts_with("no such audit: "),
            "{missing}"
        );
    }
}

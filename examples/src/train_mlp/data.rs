//! The bundled digits: parsing, and the seeded split into training and test images.

use crate::rng::Rng;

/// Width times height of an image.
pub const PIXELS: usize = 64;

/// The digits 0 to 9.
pub const CLASSES: usize = 10;

/// The value of a full pixel; an empty one is 0.
const FULL: u8 = 16;

/// One test image for each this many images.
const TEST_SHARE: usize = 5;

/// Handwritten digits, E. Alpaydin and C. Kaynak (see data/README.md).
const BUNDLED: &str = include_str!("../../data/digits.csv");

/// Why a table of digits was refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataError {
    /// A line has too few or too many columns.
    #[error("digits: line {line}: expected {PIXELS} pixels and a label, got {got} columns")]
    Columns {
        /// The line, from 1.
        line: usize,
        /// Its columns.
        got: usize,
    },
    /// A value is no integer, or too large.
    #[error(
        "digits: line {line}, column {column}: expected an integer from 0 to {max}, got {got:?}"
    )]
    Value {
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// The largest value allowed there.
        max: u8,
        /// What was there.
        got: String,
    },
    /// Too few images to split.
    #[error("digits: expected at least {TEST_SHARE} images, got {got}")]
    TooFew {
        /// Number of images.
        got: usize,
    },
}

/// Labelled images.
#[derive(Debug)]
pub struct Digits {
    pixels: Vec<[u8; PIXELS]>,
    labels: Vec<u8>,
}

impl Digits {
    /// The 1,797 images bundled with the program.
    pub fn bundled() -> Result<Self, DataError> {
        Self::parse(BUNDLED)
    }

    /// Reads one image a line: 64 pixels of 0 to 16, then the label, separated by commas.
    pub fn parse(text: &str) -> Result<Self, DataError> {
        let mut digits = Digits {
            pixels: Vec::new(),
            labels: Vec::new(),
        };
        for (index, row) in text.lines().enumerate() {
            let line = index + 1;
            let columns: Vec<&str> = row.split(',').collect();
            let got = columns.len();
            if got != PIXELS + 1 {
                return Err(DataError::Columns { line, got });
            }
            let value = |column: usize, max: u8| {
                let text = columns[column].trim();
                let value = text.parse::<u8>().ok().filter(|&value| value <= max);
                value.ok_or_else(|| DataError::Value {
                    line,
                    column: column + 1,
                    max,
                    got: text.to_owned(),
                })
            };
            let mut image = [0; PIXELS];
            for (column, pixel) in image.iter_mut().enumerate() {
                *pixel = value(column, FULL)?;
            }
            digits.pixels.push(image);
            digits.labels.push(value(PIXELS, CLASSES as u8 - 1)?);
        }
        if digits.len() < TEST_SHARE {
            return Err(DataError::TooFew { got: digits.len() });
        }
        Ok(digits)
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// A random fifth of the images (rounded down) for the test, the others for training: all
    /// indices are shuffled and the first fifth is taken.
    pub fn split(&self, rng: &mut Rng) -> Split {
        let mut test: Vec<u32> = (0..self.len() as u32).collect();
        rng.shuffle(&mut test);
        let train = test.split_off(self.len() / TEST_SHARE);
        Split { train, test }
    }

    /// The pixels of the images at `indices`, one row of 64 each, from 0 to 1. Sixteenths, so
    /// exact in f32 and in both 16-bit types.
    pub fn pixels(&self, indices: &[u32]) -> Vec<f32> {
        let images = indices.iter().map(|&index| &self.pixels[index as usize]);
        let pixels = images.flatten();
        pixels.map(|&p| f32::from(p) / f32::from(FULL)).collect()
    }

    /// The labels of the images at `indices`.
    pub fn labels(&self, indices: &[u32]) -> Vec<u32> {
        let labels = indices.iter().map(|&index| self.labels[index as usize]);
        labels.map(u32::from).collect()
    }
}

/// Indices of the images on each side of the split.
#[derive(Debug)]
pub struct Split {
    /// Images to learn from.
    pub train: Vec<u32>,
    /// Images to be judged by.
    pub test: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundled_file_is_the_published_one() {
        let digits = Digits::bundled().unwrap();
        assert_eq!(digits.len(), 1797);
        let mut counts = [0; CLASSES];
        for &label in &digits.labels {
            counts[label as usize] += 1;
        }
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        assert_eq!(
            blake3::hash(BUNDLED.as_bytes()).to_string(),
            "f84230aa70dfb2e9da69c9c09d8c1fb7fb743a0cce3676204f3b3933c2115f15"
        );
        let pixels = digits.pixels(&[0]);
        assert_eq!(pixels[..6], [0.0, 0.0, 0.3125, 0.8125, 0.5625, 0.0625]);
        assert_eq!(digits.labels(&[0, 1, 1796]), [0, 1, 8]);
    }

    #[test]
    fn the_split_uses_every_image_once() {
        let digits = Digits::bundled().unwrap();
        let Split { train, test } = digits.split(&mut Rng::new(1));
        assert_eq!((train.len(), test.len()), (1438, 359));
        let mut all = [train, test.clone()].concat();
        all.sort_unstable();
        assert_eq!(all, (0..1797).collect::<Vec<_>>());
        assert_ne!(digits.split(&mut Rng::new(2)).test, test);
    }

    fn row(change: impl Fn(&mut Vec<String>)) -> String {
        let mut columns = vec!["16".to_owned(); PIXELS];
        columns.push("9".to_owned());
        change(&mut columns);
        columns.join(",") + "\n"
    }

    #[test]
    fn malformed_tables_are_refused_by_line_and_column() {
        let good = row(|_| ()).repeat(5);
        assert_eq!(Digits::parse(&good).unwrap().len(), 5);
        let message = |bad: String| {
            Digits::parse(&(good.clone() + &bad))
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            message(row(|columns| columns.truncate(64))),
            "digits: line 6: expected 64 pixels and a label, got 64 columns"
        );
        assert_eq!(
            message("\n".to_owned()),
            "digits: line 6: expected 64 pixels and a label, got 1 columns"
        );
        assert_eq!(
            message(row(|columns| columns[2] = "17".to_owned())),
            "digits: line 6, column 3: expected an integer from 0 to 16, got \"17\""
        );
        assert_eq!(
            message(row(|columns| columns[64] = "10".to_owned())),
            "digits: line 6, column 65: expected an integer from 0 to 9, got \"10\""
        );
        assert_eq!(
            message(row(|columns| columns[0] = "-1".to_owned())),
            "digits: line 6, column 1: expected an integer from 0 to 16, got \"-1\""
        );
        assert_eq!(
            Digits::parse("").unwrap_err().to_string(),
            "digits: expected at least 5 images, got 0"
        );
    }
}

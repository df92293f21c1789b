//! Runs the built train-mlp and compares hashes, audits, files and messages.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use safetensors::SafeTensors;
use sgemm_bi_core::cpu::Simd;

/// An empty folder in the system's temporary one, deleted when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("train-mlp-test-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Runs the program in this folder; each argument is a word of `arguments`.
    fn run(&self, arguments: &str) -> Output {
        self.run_with(arguments, &[])
    }

    fn run_with(&self, arguments: &str, environment: &[(&str, &str)]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_train-mlp"))
            .args(arguments.split_whitespace())
            .env_remove("SGEMM_BI_SIMD")
            .env_remove("RAYON_NUM_THREADS")
            .envs(environment.iter().copied())
            .current_dir(&self.0)
            .output()
            .unwrap()
    }

    /// A run that must succeed: the hash it prints.
    fn hash(&self, arguments: &str) -> String {
        self.hash_with(arguments, &[])
    }

    fn hash_with(&self, arguments: &str, environment: &[(&str, &str)]) -> String {
        let output = self.run_with(arguments, environment);
        assert!(output.status.success(), "{arguments}: {}", stderr(&output));
        printed_hash(&output)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The last 64-digit hexadecimal word of the output, which must be on its last line.
fn printed_hash(output: &Output) -> String {
    let stdout = stdout(output);
    let last_line = stdout.lines().last().unwrap();
    let hash = last_line.split_whitespace().last().unwrap();
    assert!(is_hash(hash), "{last_line}");
    hash.to_owned()
}

fn is_hash(word: &str) -> bool {
    word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

#[test]
fn threads_and_simd_levels_change_nothing() {
    for arithmetic in [
        "--dtype f32",
        "--dtype bf16",
        "--dtype f16",
        "--dtype bf16 --tier ampere --batch 256",
        "--dtype f16 --tier hopper --batch 256",
    ] {
        let folder = Folder::new();
        let run = |name: &str, environment: &[(&str, &str)]| {
            let arguments = format!("--epochs 1 {arithmetic} --out {name} --audit {name}.audit");
            let output = folder.run_with(&arguments, environment);
            assert!(output.status.success(), "{name}: {}", stderr(&output));
            let printed = stdout(&output).replace(name, "NAME");
            let audit = read(&folder.file(&format!("{name}.audit")));
            (printed, audit, read(&folder.file(name)))
        };
        let base = run("base", &[]);
        for simd in Simd::available() {
            for threads in ["1", "2"] {
                let name = format!("{simd}-{threads}");
                let environment = [
                    ("SGEMM_BI_SIMD", simd.name()),
                    ("RAYON_NUM_THREADS", threads),
                ];
                let (printed, audit, weights) = run(&name, &environment);
                let diff = folder.run(&format!("diff base.audit {name}.audit"));
                assert_eq!(
                    diff.status.code(),
                    Some(0),
                    "{arithmetic} {name}: {}",
                    stdout(&diff)
                );
                assert_eq!(printed, base.0, "{arithmetic} {name}");
                assert!(
                    audit == base.1,
                    "{arithmetic} {name}: the audits' headers differ"
                );
                assert!(weights == base.2, "{arithmetic} {name}: the files differ");
            }
        }
    }
}

#[test]
fn the_threads_option_changes_nothing() {
    let folder = Folder::new();
    let hash = folder.hash("--epochs 1");
    for threads in [1, 2, 8] {
        let arguments = format!("--epochs 1 --threads {threads}");
        assert_eq!(folder.hash(&arguments), hash, "{threads} threads");
    }
}

/// A document of the project.
fn document(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    String::from_utf8(read(&path)).unwrap()
}

/// The hashes in a text, in order.
fn hashes_in(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter(|word| is_hash(word)).collect()
}

/// The rows of the table of hashes, which are other trainings of full length, are run by
/// `scripts/test.sh` with the release build.
#[test]
fn the_documents_show_the_hash_that_is_printed() {
    let default = Folder::new().hash("");
    let readme = document("README.md");
    let (before_options, _) = readme.split_once("## Options").unwrap();
    let lines = before_options.lines();
    let outside_the_table = lines.filter(|line| !line.starts_with("| `"));
    let shown: Vec<_> = outside_the_table.flat_map(hashes_in).collect();
    assert!(!shown.is_empty(), "examples/README.md shows no hash");
    for hash in shown {
        assert_eq!(hash, default, "examples/README.md");
    }
    for hash in hashes_in(&document("../README.md")) {
        assert_eq!(hash, default, "the project's README");
    }
}

#[test]
fn every_setting_that_is_said_to_matter_does() {
    let folder = Folder::new();
    let mut hashes = Vec::new();
    for change in [
        "",
        "--seed 1",
        "--batch 31",
        "--lr 0.1",
        "--epochs 2",
        "--dtype bf16",
        "--dtype bf16 --tier ampere",
        "--dtype bf16 --tier hopper",
    ] {
        let epochs = if change.contains("--epochs") {
            ""
        } else {
            "--epochs 1"
        };
        hashes.push(folder.hash(&format!("{epochs} {change}")));
    }
    hashes.sort();
    hashes.dedup();
    assert_eq!(hashes.len(), 8);
}

#[test]
fn the_hash_is_that_of_the_saved_weights_by_the_written_definition() {
    let folder = Folder::new();
    let hash = folder.hash("--epochs 1 --out w");
    let file = read(&folder.file("w"));
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let mut names = tensors.names();
    names.sort();
    assert_eq!(
        names,
        [
            "fc1.bias",
            "fc1.weight",
            "fc2.bias",
            "fc2.weight",
            "fc3.bias",
            "fc3.weight"
        ]
    );
    let mut bytes = Vec::new();
    for name in names {
        let tensor = tensors.tensor(name).unwrap();
        let mut number = |number: usize, then: &[u8]| {
            bytes.extend((number as u64).to_le_bytes());
            bytes.extend(then);
        };
        number(name.len(), name.as_bytes());
        number(3, b"f32");
        number(tensor.shape().len(), &[]);
        for &dim in tensor.shape() {
            number(dim, &[]);
        }
        number(tensor.data().len(), tensor.data());
    }
    assert_eq!(blake3::hash(&bytes).to_string(), hash);
}

#[test]
fn the_audit_has_a_line_for_each_step_and_ends_with_the_printed_hash() {
    let folder = Folder::new();
    let hash = folder.hash("--epochs 2 --batch 500 --audit a");
    let text = String::from_utf8(read(&folder.file("a"))).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    assert!(
        text.starts_with(
            "# train-mlp audit contract=1 tier=scalar dtype=f32 epochs=2 batch=500 lr=0.2 seed=42 \
             initial="
        ),
        "{text}"
    );
    // 1,438 training images in batches of 500: three steps an epoch.
    assert_eq!(lines.len(), 1 + 6, "{text}");
    for (index, line) in lines.iter().enumerate().skip(1) {
        assert_eq!(
            (line.len(), line[0], line[1].len()),
            (3, index.to_string().as_str(), 8)
        );
        assert!(is_hash(line[2]), "{line:?}");
    }
    assert_eq!(lines[6][2], hash);

    let initial = folder.hash("--epochs 0");
    assert_eq!(
        text.lines().next().unwrap().rsplit('=').next(),
        Some(initial.as_str())
    );
}

#[test]
fn diff_names_where_audits_part() {
    let folder = Folder::new();
    folder.hash("--epochs 1 --batch 500 --audit a");
    folder.hash("--epochs 1 --batch 500 --audit same");
    folder.hash("--epochs 2 --batch 500 --audit longer");
    folder.hash("--epochs 1 --batch 500 --audit seed --seed 1");
    folder.hash("--epochs 1 --batch 500 --audit lr --lr 0.25");
    for (other, status, expected) in [
        ("same", 0, "identical: 3 steps"),
        (
            "longer",
            1,
            "a ends after step 3, longer goes on with step 4",
        ),
        (
            "seed",
            1,
            "setting seed: 42 and 1\nthe audits part at step 0",
        ),
        (
            "lr",
            1,
            "setting lr: 0.2 and 0.25\nthe audits part at step 1:\n  parameters: ",
        ),
    ] {
        let output = folder.run(&format!("diff a {other}"));
        assert_eq!(
            output.status.code(),
            Some(status),
            "{other}: {}",
            stderr(&output)
        );
        assert!(
            stdout(&output).contains(expected),
            "{other}: {}",
            stdout(&output)
        );
    }
    for unreadable in ["missing", "weights.safetensors"] {
        let output = folder.run(&format!("diff a {unreadable}"));
        assert_eq!(output.status.code(), Some(2), "{unreadable}");
        assert!(stderr(&output).contains(unreadable), "{}", stderr(&output));
    }
}

#[test]
fn an_expected_hash_is_checked_after_saving() {
    let folder = Folder::new();
    let hash = folder.hash("--epochs 1");
    assert_eq!(folder.hash(&format!("--epochs 1 --expect {hash}")), hash);

    let wrong = "0".repeat(64);
    let output = folder.run(&format!("--epochs 1 --out w --expect {wrong}"));
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(
        message.contains(&wrong) && message.contains(&hash),
        "{message}"
    );
    assert_eq!(printed_hash(&output), hash);
    assert!(folder.file("w").exists());
}

#[test]
fn help_describes_every_option() {
    let folder = Folder::new();
    let output = folder.run("--help");
    assert!(output.status.success());
    let help = stdout(&output);
    for word in [
        "--epochs",
        "--batch",
        "--dtype",
        "--tier",
        "--threads",
        "--seed",
        "--lr",
        "--out",
        "--audit",
        "--expect",
        "diff",
        "ChaCha20",
        "BLAKE3",
    ] {
        assert!(help.contains(word), "{word} is not in:\n{help}");
    }
}

#[test]
fn wrong_arguments_fail_before_training_and_leave_no_file() {
    let folder = Folder::new();
    std::fs::write(folder.file("folder-not"), "").unwrap();
    for (arguments, status, expected) in [
        ("--batch 0", 2, "--batch"),
        ("--dtype f64", 2, "--dtype"),
        (
            "--tier hopper",
            2,
            "--tier hopper needs --dtype bf16 or f16",
        ),
        ("--threads 0", 2, "--threads"),
        ("--lr -1", 2, "-1"),
        ("--expect 12ab", 2, "expected 64 hexadecimal digits"),
        ("--epochs 1 diff a b", 2, "diff"),
        ("--out missing/w", 1, "--out: cannot write missing/w: "),
        ("--audit missing/a", 1, "--audit: cannot write missing/a: "),
        (
            "--out folder-not/w",
            1,
            "--out: cannot write folder-not/w: ",
        ),
        ("--out . --epochs 0", 1, "--out: cannot write .: "),
        (
            "--out x --audit ./x",
            1,
            "--out and --audit name one file: ./x",
        ),
    ] {
        let output = folder.run(arguments);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{arguments}: {message}");
        assert!(message.contains(expected), "{arguments}: {message}");
        assert!(output.stdout.is_empty(), "{arguments}: {}", stdout(&output));
    }
    let output = folder.run_with("", &[("SGEMM_BI_SIMD", "mmx")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("mmx"), "{}", stderr(&output));
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1);
}

#[test]
fn a_file_that_exists_is_replaced_only_at_the_end() {
    let folder = Folder::new();
    std::fs::write(folder.file("w"), "before").unwrap();
    let output = folder.run("--epochs 1 --out w --audit missing/a");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(read(&folder.file("w")), b"before");
    folder.hash("--epochs 1 --out w");
    assert!(SafeTensors::deserialize(&read(&folder.file("w"))).is_ok());
}

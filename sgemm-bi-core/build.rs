//! Embeds kernels that `scripts/check-kernels.py --out` has compiled, if `SGEMM_BI_EMBED` names their
//! folder; does nothing otherwise.

use std::fmt::Write;
use std::path::Path;

/// Names the folder, by an absolute path.
const VARIABLE: &str = "SGEMM_BI_EMBED";

/// The first line of the folder's list.
const HEAD: &str = "sgemm-bi embed 1";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed={VARIABLE}");
    println!("cargo:rustc-check-cfg=cfg(sgemm_bi_embed)");
    let folder = std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty());
    let (Some(folder), Some(_)) = (folder, std::env::var_os("CARGO_FEATURE_CUDA")) else {
        return;
    };
    let out = std::env::var_os("OUT_DIR").unwrap_or_default();
    let written = generate(Path::new(&folder)).and_then(|code| {
        let file = Path::new(&out).join("embed.rs");
        std::fs::write(&file, code).map_err(|why| format!("{}: {why}", file.display()))
    });
    if let Err(why) = written {
        eprintln!("{VARIABLE}: {why}");
        std::process::exit(1);
    }
    println!(
        "cargo:rerun-if-changed={}",
        Path::new(&folder).join("embed.txt").display()
    );
    println!("cargo:rustc-cfg=sgemm_bi_embed");
}

/// The expression that a folder's list becomes: an `Embed` of `src/cuda/embed.rs`.
///
/// The list has a line for what all kernels were compiled with, one for each source, and one for
/// each kernel:
///
/// ```text
/// flags FLAG…
/// source FILE
/// cubin ARCHITECTURE FILE KERNEL NAME=VALUE…
/// ```
pub fn generate(folder: &Path) -> Result<String, String> {
    if !folder.is_absolute() {
        return Err(format!("{} is not an absolute path", folder.display()));
    }
    let list = folder.join("embed.txt");
    let text = std::fs::read_to_string(&list).map_err(|why| {
        format!(
            "{}: {why}; scripts/check-kernels.py --out makes it",
            list.display()
        )
    })?;
    let mut lines = text.lines();
    if lines.next() != Some(HEAD) {
        return Err(format!(
            "{}: its first line is not {HEAD:?}",
            list.display()
        ));
    }
    let (mut flags, mut texts, mut entries) = (None, String::new(), String::new());
    for line in lines {
        let wrong = || format!("{}: {line:?} is no line of such a list", list.display());
        let (word, rest) = line.split_once(' ').ok_or_else(wrong)?;
        match word {
            "flags" => flags = Some(rest),
            "source" => {
                let path = file(&folder.join("sources"), rest)?;
                let _ = writeln!(texts, "({rest:?}, include_str!({path:?})),");
            }
            "cubin" => {
                let mut words = rest.splitn(4, ' ');
                let mut next = || words.next().ok_or_else(wrong);
                let (arch, name, kernel) = (next()?, next()?, next()?);
                let defines = words.next().unwrap_or("");
                let path = file(folder, name)?;
                let number = arch.strip_prefix("sm_").ok_or_else(wrong)?;
                // `a`: for that architecture and no later one.
                let exact = number.ends_with('a');
                let arch: u32 = number.trim_end_matches('a').parse().map_err(|_| wrong())?;
                let _ = writeln!(
                    entries,
                    "Entry {{ arch: {arch}, exact: {exact}, kernel: {kernel:?}, \
                     defines: {defines:?}, code: include_bytes!({path:?}) }},"
                );
            }
            _ => return Err(wrong()),
        }
    }
    let flags = flags.ok_or_else(|| format!("{}: it has no flags", list.display()))?;
    Ok(format!(
        "Embed {{ flags: {flags:?}, texts: &[\n{texts}], entries: &[\n{entries}] }}\n"
    ))
}

/// The path of a file in a folder.
fn file(folder: &Path, name: &str) -> Result<String, String> {
    let path = folder.join(name);
    if Path::new(name).file_name() != Some(name.as_ref()) || !path.is_file() {
        return Err(format!("{} is no file of the folder", path.display()));
    }
    match path.to_str() {
        Some(path) => Ok(path.to_owned()),
        None => Err(format!("{} is not UTF-8", path.display())),
    }
}

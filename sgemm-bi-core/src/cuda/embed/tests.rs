//! Which embedded kernels are used, and the list that they come from; with cubins that are none.

use super::super::kernels::{FEW_ROWS, FOLD, HEADERS, ROWS, TILE};
use super::super::scratch::Folder;
use super::*;

#[allow(dead_code)] // `main`, which cargo runs
#[path = "../../../build.rs"]
mod build;

fn instance() -> Instance {
    Instance::new(&TILE, vec![("BM", 96), ("BN", 128), ("BK", 16)])
}

/// An embed of this crate's sources, as far as `change` leaves it one.
fn embed(change: impl FnOnce(&mut Vec<Text<'static>>, &mut String)) -> Embed {
    let mut texts: Vec<Text<'static>> = HEADERS.to_vec();
    texts.extend([("tile.cu", TILE.text), ("rows.cu", ROWS.text)]);
    let mut flags = common_flags().join(" ");
    change(&mut texts, &mut flags);
    let entry = |arch, exact, code| Entry {
        arch,
        exact,
        kernel: "tile",
        defines: "BK=16 BM=96 BN=128",
        code,
    };
    let entries = vec![
        entry(80, false, &b"for 80"[..]),
        entry(86, false, b"for 86"),
        entry(90, true, b"for 90 only"),
        entry(120, false, b"for 120"),
        Entry {
            defines: "BK=32 BM=96 BN=128",
            ..entry(90, true, b"another tile")
        },
        Entry {
            kernel: "fold",
            ..entry(90, true, b"another kernel")
        },
    ];
    Embed {
        flags: flags.leak(),
        texts: texts.leak(),
        entries: entries.leak(),
    }
}

fn intact() -> Embed {
    embed(|_, _| ())
}

#[test]
fn an_instance_is_found_in_any_order_of_its_parameters() {
    let code = |defines| intact().find(&Instance::new(&TILE, defines), &HEADERS, 90);
    let expected = Ok(&b"for 90 only"[..]);
    assert_eq!(code(vec![("BM", 96), ("BN", 128), ("BK", 16)]), expected);
    assert_eq!(code(vec![("BK", 16), ("BM", 96), ("BN", 128)]), expected);
}

#[test]
fn code_is_for_its_own_generation_and_the_nearest_is_taken() {
    let code = |arch| intact().find(&instance(), &HEADERS, arch).ok();
    assert_eq!(code(80), Some(&b"for 80"[..]));
    assert_eq!(code(89), Some(&b"for 86"[..]));
    assert_eq!(code(90), Some(&b"for 90 only"[..]));
    assert_eq!(code(121), Some(&b"for 120"[..]));
    for arch in [61, 75, 91, 100, 130] {
        assert_eq!(code(arch), None, "{arch}");
    }
}

#[test]
fn what_is_missing_is_named() {
    let why = |defines, arch| {
        let instance = Instance::new(&TILE, defines);
        intact().find(&instance, &HEADERS, arch).unwrap_err()
    };
    assert_eq!(
        why(vec![("BM", 96)], 90),
        "none of them is `tile BM=96` for sm_90"
    );
    // Its text is that of the embed, but there is no such kernel in it.
    let rows = Instance::new(&ROWS, vec![("BM", 96), ("BN", 128), ("BK", 16)]);
    assert!(intact().find(&rows, &HEADERS, 90).is_err());
}

#[test]
fn stale_and_foreign_code_is_never_used() {
    type Change = fn(&mut Vec<Text<'static>>, &mut String);
    fn other(text: &'static str) -> &'static str {
        format!("{text} ").leak()
    }
    let changes: [Change; 7] = [
        // The kernel, a header, either missing, or under another name.
        |texts, _| texts[HEADERS.len()].1 = other(TILE.text),
        |texts, _| texts[0].1 = other(HEADERS[0].1),
        |texts, _| texts.truncate(HEADERS.len()),
        |texts, _| texts.retain(|text| text.0 != HEADERS[1].0),
        |texts, _| texts[HEADERS.len()].0 = "naive.cu",
        // A flag, and a constant of the contract.
        |_, flags| *flags = flags.replace("--fmad=false ", ""),
        |_, flags| *flags = flags.replace("-DCHUNK=4096", "-DCHUNK=2048"),
    ];
    for (i, change) in changes.into_iter().enumerate() {
        let why = embed(change).find(&instance(), &HEADERS, 90);
        let expected = "they were made from other sources of `tile`".to_owned();
        assert_eq!(why, Err(expected), "change {i}");
    }
    assert!(intact().find(&instance(), &HEADERS, 90).is_ok());
}

#[test]
fn a_header_that_the_embed_does_not_know_makes_it_foreign() {
    let headers = [HEADERS.to_vec(), vec![("new.cuh", "")]].concat();
    assert!(intact().find(&instance(), &headers, 90).is_err());
}

#[test]
fn a_description_counts_what_serves() {
    assert_eq!(intact().describe(&HEADERS, 90), "3 embedded kernels");
    let stale = embed(|texts, _| texts.clear());
    assert!(stale.describe(&HEADERS, 90).contains("other sources"));
}

/// Where this build has an embed, as `SGEMM_BI_EMBED` said.
#[test]
fn every_embedded_kernel_of_this_build_is_found() {
    for entry in EMBED.entries {
        let sources = [&TILE, &FEW_ROWS, &FOLD, &ROWS];
        // `naive` is for tests of the kernels alone.
        let Some(source) = sources.into_iter().find(|s| s.name == entry.kernel) else {
            continue;
        };
        let defines = entry.defines.split_whitespace();
        let define = |word: &'static str| {
            let (name, value) = word.split_once('=').expect("NAME=VALUE");
            (name, value.parse().expect("a number"))
        };
        let instance = Instance::new(source, defines.map(define).collect());
        let found = EMBED.find(&instance, &HEADERS, entry.arch);
        assert_eq!(found, Ok(entry.code), "{instance}");
        assert_eq!(entry.code[..4], *b"\x7fELF", "{instance}");
    }
}

fn folder(list: &str) -> Folder {
    let folder = Folder::new();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text);
    std::fs::create_dir(folder.path().join("sources")).expect("created");
    write("embed.txt", list).expect("written");
    write("sources/tile.cu", "text").expect("written");
    write("tile-1.cubin", "code").expect("written");
    folder
}

#[test]
fn a_list_becomes_an_embed() {
    let list = "sgemm-bi embed 1\nflags -a -b=1\nsource tile.cu\n\
        cubin sm_90a tile-1.cubin tile BK=16 BM=96\ncubin sm_86 tile-1.cubin naive\n";
    let folder = folder(list);
    let code = build::generate(folder.path()).expect("a whole list");
    let path = folder.path().display();
    for part in [
        r#"flags: "-a -b=1""#.to_owned(),
        format!(r#"("tile.cu", include_str!("{path}/sources/tile.cu")),"#),
        r#"arch: 90, exact: true, kernel: "tile", defines: "BK=16 BM=96", "#.to_owned(),
        format!(r#"code: include_bytes!("{path}/tile-1.cubin")"#),
        r#"arch: 86, exact: false, kernel: "naive", defines: "","#.to_owned(),
    ] {
        assert!(code.contains(&part), "{part} is not in {code}");
    }
}

#[test]
fn a_list_that_is_broken_fails_the_build_with_a_reason() {
    let head = "sgemm-bi embed 1\nflags -a\n";
    for (list, reason) in [
        (String::new(), "first line"),
        ("sgemm-bi embed 2\n".into(), "first line"),
        ("sgemm-bi embed 1\n".into(), "no flags"),
        (format!("{head}nonsense x\n"), "no line"),
        (format!("{head}cubin sm_90\n"), "no line"),
        (format!("{head}cubin 90 tile-1.cubin tile\n"), "no line"),
        (format!("{head}cubin sm_x tile-1.cubin tile\n"), "no line"),
        (format!("{head}cubin sm_90 none.cubin tile\n"), "no file"),
        (
            format!("{head}cubin sm_90 sources/tile.cu tile\n"),
            "no file",
        ),
        (format!("{head}source ../tile-1.cubin\n"), "no file"),
    ] {
        let folder = folder(&list);
        let why = build::generate(folder.path()).expect_err(&list);
        assert!(why.contains(reason), "{list:?}: {why}");
    }
    let empty = Folder::new();
    let why = build::generate(empty.path()).expect_err("there is no list");
    assert!(why.contains("check-kernels.py --out"), "{why}");
    let why = build::generate("target/embed".as_ref()).expect_err("a relative path");
    assert!(why.contains("absolute"), "{why}");
}

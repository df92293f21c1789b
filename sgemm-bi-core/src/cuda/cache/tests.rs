//! The cache, and everything that can be wrong with it.

use std::collections::HashMap;

use super::*;
use crate::cuda::scratch::Folder;

fn key(text: &str) -> Key {
    Key::of([text])
}

fn file_of(folder: &Path, key: Key) -> PathBuf {
    folder.join(key.file_name())
}

#[test]
fn what_is_stored_is_loaded_under_its_key_alone() {
    let folder = Folder::new();
    let cache = Cache::at(&folder.path().join("not/there/yet"));
    assert_eq!(cache.load(key("a")), None);
    cache.store(key("a"), b"code of a");
    cache.store(key("b"), b"");
    assert_eq!(cache.load(key("a")).as_deref(), Some(&b"code of a"[..]));
    assert_eq!(cache.load(key("b")).as_deref(), Some(&b""[..]));
    cache.store(key("a"), b"newer code");
    assert_eq!(cache.load(key("a")).as_deref(), Some(&b"newer code"[..]));
    let left = fs::read_dir(cache.folder().expect("a folder")).expect("readable");
    assert_eq!(left.count(), 2, "nothing temporary stays");
}

#[test]
fn keys_tell_inputs_apart_however_they_are_split() {
    let keys = [
        Key::of(["ab", "c"]),
        Key::of(["a", "bc"]),
        Key::of(["abc"]),
        Key::of(["ab", "c", ""]),
    ];
    for (i, a) in keys.iter().enumerate() {
        assert!(keys[i + 1..].iter().all(|b| a != b));
    }
}

#[test]
fn a_corrupt_a_truncated_and_a_foreign_entry_are_none_and_are_replaced() {
    let folder = Folder::new();
    let cache = Cache::at(folder.path());
    let file = file_of(folder.path(), key("a"));
    cache.store(key("a"), b"some code");
    let whole = fs::read(&file).expect("stored");
    for i in 0..whole.len() {
        let mut corrupt = whole.clone();
        corrupt[i] ^= 1;
        fs::write(&file, corrupt).expect("written");
        assert_eq!(cache.load(key("a")), None, "byte {i}");
        fs::write(&file, &whole[..i]).expect("written");
        assert_eq!(cache.load(key("a")), None, "{i} bytes");
    }
    let longer = [&whole[..], b"more"].concat();
    fs::write(&file, longer).expect("written");
    assert_eq!(cache.load(key("a")), None);
    // Another key's intact entry under this name.
    cache.store(key("b"), b"other code");
    fs::copy(file_of(folder.path(), key("b")), &file).expect("copied");
    assert_eq!(cache.load(key("a")), None);
    cache.store(key("a"), b"some code");
    assert_eq!(cache.load(key("a")).as_deref(), Some(&b"some code"[..]));
}

#[test]
fn a_folder_that_cannot_be_written_is_no_error() {
    let folder = Folder::new();
    // A file where the folder should be, for the superuser too.
    let file = folder.path().join("file");
    fs::write(&file, "").expect("written");
    let cache = Cache::at(&file.join("cache"));
    cache.store(key("a"), b"code");
    assert_eq!(cache.load(key("a")), None);
    // A folder where an entry should be.
    let cache = Cache::at(folder.path());
    fs::create_dir(file_of(folder.path(), key("a"))).expect("created");
    cache.store(key("a"), b"code");
    assert_eq!(cache.load(key("a")), None);
    let names: Vec<_> = fs::read_dir(folder.path())
        .expect("readable")
        .flatten()
        .collect();
    assert_eq!(names.len(), 2, "nothing temporary stays: {names:?}");
}

#[test]
#[cfg(unix)]
fn a_read_only_folder_is_read_and_no_error() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let cache = Cache::at(folder.path());
    cache.store(key("a"), b"code");
    let set = |mode| fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode));
    set(0o500).expect("the folder is ours");
    cache.store(key("b"), b"code"); // The superuser's succeeds.
    assert_eq!(cache.load(key("a")).as_deref(), Some(&b"code"[..]));
    set(0o700).expect("the folder is ours");
}

#[test]
fn writers_and_readers_at_a_time_see_whole_entries() {
    let folder = Folder::new();
    let cache = Cache::at(folder.path());
    let code = |writer: u8| vec![writer; 100_000];
    std::thread::scope(|scope| {
        for writer in 0..4u8 {
            let cache = &cache;
            scope.spawn(move || {
                for _ in 0..50 {
                    cache.store(key("a"), &code(writer));
                    let got = cache.load(key("a")).expect("an entry is always whole");
                    assert_eq!(got, code(got[0]));
                }
            });
        }
    });
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 1);
}

#[test]
fn the_environment_names_the_folder() {
    let folder = |variables: &[(&str, &str)]| {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        let cache = Cache::from_variables(&|name| variables.get(name).map(OsString::from));
        cache
            .folder
            .map(|folder| folder.to_str().expect("ASCII").to_owned())
    };
    let both = [("XDG_CACHE_HOME", "/xdg"), ("HOME", "/home/me")];
    assert_eq!(folder(&both).as_deref(), Some("/xdg/sgemm-bi"));
    assert_eq!(
        folder(&both[1..]).as_deref(),
        Some("/home/me/.cache/sgemm-bi")
    );
    let empty = [("XDG_CACHE_HOME", ""), ("HOME", "/home/me")];
    assert_eq!(folder(&empty).as_deref(), Some("/home/me/.cache/sgemm-bi"));
    assert_eq!(folder(&[]), None);
    assert_eq!(
        folder(&[(VARIABLE, "here"), both[0]]).as_deref(),
        Some("here")
    );
    assert_eq!(folder(&[(VARIABLE, ""), both[0]]), None);
}

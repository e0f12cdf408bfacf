use super::*;
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use tar::{EntryType, Header};

fn archive(entries: &[(&[u8], EntryType, &[u8])]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    for (path, kind, body) in entries {
        gzip.write_all(&entry(path, *kind, body)).expect("memory");
    }
    gzip.write_all(&[0; 1024]).expect("memory");
    gzip.finish().expect("memory")
}

/// A raw entry: the library refuses to write what these tests need.
fn entry(path: &[u8], kind: EntryType, body: &[u8]) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.as_mut_bytes()[..path.len()].copy_from_slice(path);
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(body.len() as u64);
    if matches!(kind, EntryType::Symlink | EntryType::Link) {
        header.set_link_name("/etc/passwd").expect("short");
    }
    header.set_cksum();
    let mut out = header.as_bytes().to_vec();
    out.extend_from_slice(body);
    out.resize(out.len().div_ceil(512) * 512, 0);
    out
}

/// Tries to unpack; says the error and whether anything was left.
fn refused(bytes: &[u8], limits: &Limits) -> String {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let error = unpack(bytes, &dir.path().join("app"), limits).expect_err("must be refused").to_string();
    assert_eq!(
        fs::read_dir(dir.path()).expect("listing").count(),
        0,
        "something was left behind after: {error}"
    );
    let inspected = inspect(bytes, limits, &[]).expect_err("must be refused without a disk, too").to_string();
    assert_eq!(inspected, error);
    error
}

#[test]
fn refuses_what_could_hurt() {
    let limits = Limits::default();
    let cases: &[(&[u8], EntryType, &str)] = &[
        (b"/etc/cron.d/x", EntryType::Regular, "an absolute path"),
        (b"a/../../x", EntryType::Regular, "\"..\" in it"),
        (b"..", EntryType::Directory, "\"..\" in it"),
        (b"a\\..\\x", EntryType::Regular, "a backslash"),
        (b"a\nb", EntryType::Regular, "control character"),
        (b"\xff\xfe", EntryType::Regular, "no UTF-8"),
        (b"link", EntryType::Symlink, "a symbolic link"),
        (b"link", EntryType::Link, "a hard link"),
        (b"null", EntryType::Char, "a device"),
        (b"disk", EntryType::Block, "a device"),
        (b"pipe", EntryType::Fifo, "a pipe"),
        (b"holes", EntryType::GNUSparse, "a sparse file"),
        (b"what", EntryType::XGlobalHeader, "of an unknown kind"),
    ];
    for (path, kind, want) in cases {
        let error = refused(&archive(&[(b"fine", EntryType::Regular, b"x"), (path, *kind, b"")]), &limits);
        assert!(error.contains(want), "{error} does not say {want}");
    }
}

#[test]
fn refuses_names_that_come_twice() {
    let file = EntryType::Regular;
    for pair in [
        [(&b"a"[..], file, &b"1"[..]), (&b"a"[..], file, &b"2"[..])],
        [(b"a", file, b"1"), (b"./a", file, b"2")],
        [(b"a", file, b"1"), (b"a/b", file, b"2")],
        [(b"a/b", file, b"1"), (b"a", file, b"2")],
        [(b"a/", EntryType::Directory, b""), (b"a", EntryType::Directory, b"")],
    ] {
        assert!(refused(&archive(&pair), &Limits::default()).contains("comes twice"));
    }
}

#[test]
fn refuses_too_much() {
    let limits = Limits { entries: 3, bytes: 8192, ..Limits::default() };
    let file = EntryType::Regular;
    let many = archive(&[(b"a", file, b""), (b"b", file, b""), (b"c", file, b""), (b"d", file, b"")]);
    assert_eq!(refused(&many, &limits), "more than 3 files and folders");
    // Folders that are only implied count as well.
    assert_eq!(refused(&archive(&[(b"a/b/c/d", file, b"")]), &limits), "more than 3 files and folders");
    assert_eq!(refused(&archive(&[(b"a", file, &[7; 9000])]), &limits), "more than 8192 bytes when unpacked");
    let deep = "d/".repeat(40) + "x";
    assert!(refused(&archive(&[(deep.as_bytes(), file, b"")]), &Limits::default()).contains("folders deep"));
}

#[test]
fn finds_a_million_files_early() {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    for n in 0..30_000 {
        gzip.write_all(&entry(format!("f{n}").as_bytes(), EntryType::Regular, b"")).expect("memory");
    }
    assert_eq!(
        refused(&gzip.finish().expect("memory"), &Limits::default()),
        "more than 20000 files and folders"
    );
}

#[test]
fn finds_a_bomb_while_it_swells() {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    let mut header = Header::new_ustar();
    header.set_path("zeros").expect("short");
    header.set_size(1 << 30);
    header.set_mode(0o644);
    header.set_cksum();
    gzip.write_all(header.as_bytes()).expect("memory");
    let zeros = vec![0; 1 << 20];
    for _ in 0..80 {
        gzip.write_all(&zeros).expect("memory");
    }
    let bomb = gzip.finish().expect("memory");
    assert!(bomb.len() < 200_000);
    assert!(refused(&bomb, &Limits::default()).contains("zip bomb"));
    // A long name is bounded as well.
    let long = archive(&[(b"n", EntryType::GNULongName, &vec![b'a'; 1 << 20])]);
    assert!(refused(&long, &Limits::default()).contains("longer than a path may be"));
}

#[test]
fn refuses_damaged_archives() {
    let whole = archive(&[(b"a", EntryType::Regular, &[9; 3000])]);
    for damaged in [&whole[..whole.len() / 2], &whole[..whole.len() - 4], b"", b"no archive at all"] {
        assert!(refused(damaged, &Limits::default()).contains("not a readable"));
    }
    let mut flipped = whole;
    let at = flipped.len() - 6;
    flipped[at] ^= 1;
    assert!(refused(&flipped, &Limits::default()).contains("not a readable"));
}

#[test]
fn reads_long_names_of_either_kind() {
    let long = "x".repeat(120) + "/file";
    let pax_record = format!("path={long}\n");
    let length = pax_record.len() + 4;
    let pax = format!("{length} {pax_record}");
    assert_eq!(pax.len(), length);
    for (kind, body) in [(EntryType::GNULongName, long.clone() + "\0"), (EntryType::XHeader, pax)] {
        let bytes = archive(&[(b"header", kind, body.as_bytes()), (b"short", EntryType::Regular, b"hello")]);
        let found = inspect(&*bytes, &Limits::default(), &[&long]).expect("accepted");
        assert_eq!(found.wanted[&long], b"hello");
    }
    let sized = archive(&[(b"h", EntryType::XHeader, b"13 size=1000\n"), (b"a", EntryType::Regular, b"")]);
    assert!(refused(&sized, &Limits::default()).contains("extended size"));
}

#[test]
fn refuses_to_pack_links_and_leaves_existing_folders_alone() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let app = dir.path().join("app");
    fs::create_dir(&app).expect("folder");
    std::os::unix::fs::symlink("/etc/passwd", app.join("link")).expect("link");
    let error = pack(&app, Vec::new(), &Limits::default()).expect_err("a link").to_string();
    assert_eq!(error, "\"link\" is a symbolic link; only plain files and folders are allowed");
    fs::remove_file(app.join("link")).expect("removed");
    let packed = pack(&app, Vec::new(), &Limits::default()).expect("an empty folder packs");
    unpack(&*packed, &app, &Limits::default()).expect_err("the folder exists");
    assert!(app.is_dir());
}

fn tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut out = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).expect("listing") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                todo.push(path);
            } else {
                let name = path.strip_prefix(root).expect("beneath").to_str().expect("UTF-8").to_owned();
                out.insert(name, fs::read(&path).expect("readable"));
            }
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn what_is_packed_unpacks_to_the_same(files in proptest::collection::btree_map("[a-c]{1,3}(/[d-f]{1,3}){0,3}/[g-i]{1,130}", proptest::collection::vec(any::<u8>(), 0..700), 0..8)) {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir(&from).expect("folder");
        for (name, body) in &files {
            let path = from.join(name);
            fs::create_dir_all(path.parent().expect("beneath")).expect("folders");
            fs::write(path, body).expect("written");
        }
        let packed = pack(&from, Vec::new(), &Limits::default()).expect("packs");
        prop_assert_eq!(&packed, &pack(&from, Vec::new(), &Limits::default()).expect("packs again"));
        unpack(&*packed, &to, &Limits::default()).expect("unpacks");
        let found = inspect(&*packed, &Limits::default(), &[]).expect("inspects");
        prop_assert_eq!(found.files.len(), files.len());
        prop_assert_eq!(tree(&to), files);
    }

    #[test]
    fn nothing_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..4000), wrap: bool) {
        if wrap {
            let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
            gzip.write_all(&bytes).expect("memory");
            bytes = gzip.finish().expect("memory");
        }
        let _ = inspect(&*bytes, &Limits::default(), &["job.yaml"]);
    }
}

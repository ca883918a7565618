//! The header is generated from the source, and checked in so that users need no generator.

use std::path::Path;

/// Writes the header anew if FARINDEX_WRITE_HEADER is set, as it must be after a change of the interface.
#[test]
fn the_header_is_the_generated_one() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(crate_dir.join("cbindgen.toml")).expect("a configuration");
    let sources = ["status", "raw", "pool", "session", "index", "batch", "scan"];
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in sources {
        builder = builder.with_src(crate_dir.join(format!("src/{source}.rs")));
    }
    let mut generated = Vec::new();
    builder.generate().expect("the source can be read").write(&mut generated);
    let generated = String::from_utf8(generated).expect("UTF-8").replace(" * # Safety\n", " * Contract:\n");

    let header = crate_dir.join("include/farindex.h");
    if std::env::var_os("FARINDEX_WRITE_HEADER").is_some() {
        std::fs::write(&header, &generated).expect("the header can be written");
    }
    let checked_in = std::fs::read_to_string(&header).unwrap_or_default();
    assert!(
        checked_in == generated,
        "include/farindex.h is not what the source says: FARINDEX_WRITE_HEADER=1 cargo test -p farindex-c header"
    );
}

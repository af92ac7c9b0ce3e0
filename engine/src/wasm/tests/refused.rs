//! What must not get as far as the compiler, and the compiled code on disk.

use std::{fmt::Write as _, fs};

use proptest::prelude::*;

use super::{handwritten::with_type_section, *};
use crate::wasm::{CompileError, Counted, PluginForm, Refusal};

#[track_caller]
fn refused(bytes: &[u8]) -> Refusal {
    runtime().admit(bytes, "test.wasm").unwrap_err().refusal
}

#[track_caller]
fn check(bytes: &[u8], code: &str, message: &str) {
    let error = runtime().admit(bytes, "test.wasm").unwrap_err();
    assert_eq!(error.code(), code, "{error}");
    let text = error.to_string();
    assert!(text.starts_with("plugin test.wasm is refused: ") && text.contains(message), "{text}");
    assert!(text.len() < 4000 && !text.contains(char::is_control), "{text:?}");
}

#[track_caller]
fn check_text(text: &str, code: &str, message: &str) {
    check(&wat::parse_str(text).unwrap(), code, message);
}

#[track_caller]
fn check_limit(bytes: &[u8], expected: Counted) {
    match refused(bytes) {
        Refusal::Limit { counted, found } => {
            assert_eq!(counted, expected);
            assert!(found > counted.max());
        }
        other => panic!("{other}"),
    }
}

#[track_caller]
fn check_text_limit(text: &str, expected: Counted) {
    check_limit(&wat::parse_str(text).unwrap(), expected);
}

#[test]
fn a_module_of_cargo_is_admitted_and_listed() {
    let plugin = admit(hostile_bytes());
    let listing = plugin.listing();
    assert_eq!(listing.form, PluginForm::CoreModule);
    assert_eq!(listing.bytes, hostile_bytes().len());
    assert_eq!(listing.contract_version, "0.1.0");
    assert_eq!(
        listing.exports,
        ["engine:plugin/program@0.1.0", "engine:plugin/operator-chain@0.1.0"].map(str::to_owned)
    );
    assert!(listing.imports.contains(&"engine:plugin/output@0.1.0".to_owned()));
    assert!(listing.functions > 50 && listing.code_bytes > 10_000);
    assert!(
        listing.producers.iter().any(|producer| producer.starts_with("processed-by: rustc")),
        "{:?}",
        listing.producers
    );
    // The component that was made of it is one too.
    let component = runtime().admit(&plugin.component, "component.wasm").unwrap();
    assert_eq!(component.listing().form, PluginForm::Component);
    assert_eq!(component.listing().imports, listing.imports);
    assert_ne!(component.digest(), plugin.digest());
}

#[test]
fn what_is_not_a_component_is_refused() {
    check(b"", "not-a-component", "first bytes");
    check(b"#!/bin/sh\nexit 1\n", "not-a-component", "first bytes");
    check(b"\0asm", "not-a-component", "");
    check(&[0x50, 0x4b, 3, 4], "not-a-component", "first bytes");
    let plugin = hostile_bytes();
    for percent in [1, 10, 25, 50, 75, 99] {
        check(&plugin[..plugin.len() * percent / 100], "not-a-component", "");
    }
    check_text("(module)", "not-a-plugin", "built without engine-sdk");
    check_text("(component)", "exports", "engine:plugin/program@0.1.0, engine:plugin/operator-chain@0.1.0 is missing");
}

#[test]
fn a_plugin_above_the_size_is_refused_before_it_is_read() {
    let runtime = PluginRuntime::new(PluginRuntimeConfig { plugin_bytes_max: 1000, ..config() }).unwrap();
    let error = runtime.admit(&[0; 1001], "large.wasm").unwrap_err();
    assert_eq!(error.code(), "too-large");
    assert_eq!(
        error.to_string(),
        "plugin large.wasm is refused: it has 1001 bytes, at most 1000 are allowed (plugin.bytes-max)"
    );
}

#[test]
fn compiled_code_cannot_be_submitted() {
    let directory = tempfile::tempdir().unwrap();
    let runtime =
        PluginRuntime::new(PluginRuntimeConfig { cache_dir: Some(directory.path().to_owned()), ..config() }).unwrap();
    runtime.compile(&runtime.admit(hostile_bytes(), "test.wasm").unwrap()).unwrap();
    let entry = fs::read(cache_entry(directory.path())).unwrap();
    check(&entry, "not-a-component", "first bytes");
    check(&entry[104..], "not-a-component", "it is compiled already; submit the .wasm file");
}

#[test]
fn foreign_imports_are_listed() {
    check_text(
        r#"(component
            (import "wasi:sockets/tcp@0.2.0" (instance))
            (import "wasi:filesystem/types@0.2.0" (instance))
            (import "wasi:http/types@0.2.0" (instance))
            (import "engine:plugin/output@0.1.0" (instance)))"#,
        "forbidden-import",
        "it imports wasi:sockets/tcp@0.2.0, wasi:filesystem/types@0.2.0, wasi:http/types@0.2.0, which",
    );
    check_text(
        r#"(module (import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32))))"#,
        "forbidden-import",
        "wasi_snapshot_preview1",
    );
    check_text(r#"(module (import "env" "memory" (memory 1)))"#, "forbidden-import", "env");
}

#[test]
fn another_version_of_the_contract_is_named() {
    for version in ["0.2.0", "0.1.1", "1.0.0", "0.1.0-rc.1"] {
        let text = format!(r#"(component (import "engine:plugin/output@{version}" (instance)))"#);
        check_text(&text, "contract-version", "this engine provides version 0.1.0");
    }
    check_text(r#"(component (import "engine:plugin/output" (instance)))"#, "contract-version", "engine-sdk 0.1.0");
    let text = r#"(module (import "engine:plugin/logging@0.9.0" "log" (func (param i32 i32 i32))))"#;
    check(&with_type_section(text), "contract-version", "engine:plugin/logging@0.9.0");
}

#[test]
fn look_alikes_of_allowed_names_are_refused() {
    for name in ["unsafe-intrinsics", "wasmtime:unsafe-intrinsics/x@0.1.0", "engine:plugins/output@0.1.0"] {
        check_text(&format!(r#"(component (import "{name}" (instance)))"#), "forbidden-import", name);
    }
    for name in ["$root", "engine:plugin/output@0.1.0\u{200b}", "engine:plugin/\u{43e}utput@0.1.0", "", "[export]x"] {
        check_text(&format!(r#"(module (import "{name}" "f" (func)))"#), "forbidden-import", "");
    }
    let long = "a".repeat(1 << 20);
    // The text format takes no string of this length into a binary that parsers accept.
    let bytes = wat::parse_str(format!(r#"(component (import "{long}" (func)))"#)).unwrap();
    let error = runtime().admit(&bytes, "test.wasm").unwrap_err();
    assert!(["structure-limit", "not-a-component"].contains(&error.code()), "{error}");
    let long = "a".repeat(1000);
    check_text_limit(&format!(r#"(module (import "{long}" "f" (func)))"#), Counted::NameBytes);
    check_text_limit(&format!(r#"(component (import "{long}" (func)))"#), Counted::NameBytes);
    check_text_limit(&format!(r#"(module (func (export "{long}")))"#), Counted::NameBytes);
}

#[test]
fn further_exports_are_refused() {
    let component = admit(hostile_bytes()).component;
    // A component of one more export around the plugin's: the plugin itself is left as it is.
    let mut text = String::from("(component (component $inner)");
    text.push_str(r#"(instance $i (instantiate $inner)) (export "engine:plugin/program@0.1.0" (instance $i))"#);
    text.push_str(r#"(export "engine:plugin/operator-chain@0.1.0" (instance $i))"#);
    check_text(&format!("{text})"), "contract-types", "");
    check_text(&format!(r#"{text} (export "extra:thing/x@1.0.0" (instance $i)))"#), "exports", "extra:thing/x@1.0.0");
    assert!(component.starts_with(b"\0asm"));
}

#[test]
fn types_of_hostile_size_are_refused() {
    let fields: String = (0..10_000).fold(String::new(), |mut text, index| {
        write!(text, "(field \"f{index}\" u8)").unwrap();
        text
    });
    let error = refused(&wat::parse_str(format!("(component (type (record {fields})))")).unwrap());
    assert_eq!(error.code(), "structure-limit");
    let fields: String = (0..1001).fold(String::new(), |mut text, index| {
        write!(text, "(field \"f{index}\" u8)").unwrap();
        text
    });
    check_text_limit(&format!("(component (type (record {fields})))"), Counted::TypeMembers);
    let million = "(type (func))".repeat(1_000_000);
    check_text_limit(&format!("(module {million})"), Counted::Types);
    check_text_limit(&format!("(component {})", "(type (list u8))".repeat(10_001)), Counted::Types);
}

#[test]
fn deep_nesting_is_refused_without_recursing_to_its_end() {
    for depth in [9, 30] {
        let text = format!("{}{}", "(component ".repeat(depth + 1), ")".repeat(depth + 1));
        check_text_limit(&text, Counted::Nesting);
        let text = format!("(component {}{})", "(type (component ".repeat(depth + 1), "))".repeat(depth + 1));
        check_text_limit(&text, Counted::Nesting);
    }
    // Component types within component types, three bytes a level: as deep as a section may be, and deeper.
    for levels in [20_000_u32, 4_000_000] {
        let mut types = vec![1];
        types.extend([0x41, 0x01, 0x01].repeat(usize::try_from(levels).unwrap()));
        let bytes = component_with_section(7, &types);
        let refusal = refused(&bytes);
        assert!(["structure-limit", "not-a-component"].contains(&refusal.code()), "{refusal}");
        // The same within the section that the encoder reads.
        let module = module_with_custom_section("component-type:x", &bytes);
        let refusal = refused(&module);
        assert!(["structure-limit", "not-a-component"].contains(&refusal.code()), "{refusal}");
    }
}

#[test]
fn a_type_that_doubles_with_each_line_is_refused() {
    let mut text = String::from("(component (type $t0 (tuple u8 u8))");
    for index in 1..=60 {
        let before = index - 1;
        write!(text, "(type $t{index} (tuple $t{before} $t{before}))").unwrap();
    }
    check_text(&format!("{text})"), "invalid", "");
}

#[test]
fn many_parts_are_refused() {
    let check = |part: &str, times, counted| check_text_limit(&format!("(component {})", part.repeat(times)), counted);
    check("(component)", 1000, Counted::Modules);
    check("(core module)", 1000, Counted::Modules);
    check("(core module (memory 1))", 5, Counted::Memories);
    check("(core module (table 1 funcref))", 9, Counted::Tables);
    let instances = "(core instance (instantiate $m))".repeat(1000);
    check_text_limit(&format!("(component (core module $m) {instances})"), Counted::Instances);
    check_text_limit(&format!("(module {})", "(memory 1)".repeat(5)), Counted::Memories);
    check_text_limit(&format!("(module {})", "(func)".repeat(50_001)), Counted::Functions);
    check_text_limit(&format!("(module (func (local {})))", "i32 ".repeat(5001)), Counted::Locals);
    check_text_limit(&format!("(module (func {}))", "nop ".repeat(1 << 20)), Counted::FunctionBytes);
    let data = format!("(module (memory 200) (data (i32.const 0) \"{}\"))", "x".repeat((8 << 20) + 1));
    check_text_limit(&data, Counted::DataBytes);
    check_text_limit(&format!("(module {})", "(global i32 (i32.const 0))".repeat(100_001)), Counted::Definitions);
}

#[test]
fn features_that_plugins_may_not_use_are_refused() {
    for text in [
        "(module (memory i64 1))",
        "(module (memory 1 1 shared))",
        "(module (func (param v128) (drop (i32x4.relaxed_trunc_f32x4_s (local.get 0)))))",
        "(module (type (struct)))",
        "(module (tag))",
        "(module (func (result i32)))",
    ] {
        check_text(text, "invalid", "");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A reader that panics is answered with another code than a refusal.
    #[test]
    fn damaged_plugins_are_refused_or_admitted_but_break_nothing(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = hostile_bytes().to_vec();
        for (index, byte) in damage {
            let position = index.index(bytes.len());
            bytes[position] = byte;
        }
        if let Err(error) = runtime().admit(&bytes, "test.wasm") {
            prop_assert_ne!(error.code(), "not-checked", "{}", error);
        }
    }
}

fn cache_entry(directory: &std::path::Path) -> PathBuf {
    let mut entries = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "code"));
    let entry = entries.next().unwrap();
    assert_eq!(entries.next(), None);
    entry
}

#[test]
fn a_damaged_entry_of_the_cache_is_rebuilt_and_a_good_one_used() {
    let directory = tempfile::tempdir().unwrap();
    let plans = || {
        let config = PluginRuntimeConfig { cache_dir: Some(directory.path().to_owned()), ..config() };
        let runtime = PluginRuntime::new(config).unwrap();
        let plugin = runtime.compile(&runtime.admit(hostile_bytes(), "test.wasm").unwrap()).unwrap();
        plugin.plan(&[], &patient()).unwrap().nodes.len()
    };
    assert_eq!(plans(), 2);
    let path = cache_entry(directory.path());
    let whole = fs::read(&path).unwrap();
    let inode = |path: &std::path::Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    let first = inode(&path);
    assert_eq!(plans(), 2);
    assert_eq!(inode(&path), first, "a good entry is not written again");
    for damage in [0, 40, 80, 104, whole.len() / 2, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[damage] ^= 0x10;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(plans(), 2);
        assert_ne!(fs::read(&path).unwrap(), bytes, "the entry damaged at {damage} is rebuilt");
    }
    fs::write(&path, b"").unwrap();
    assert_eq!(plans(), 2);
    // With another key, everything is somebody else's.
    fs::write(directory.path().join("key"), [7; 32]).unwrap();
    let before = inode(&path);
    assert_eq!(plans(), 2);
    assert_ne!(inode(&path), before);
}

#[test]
fn what_is_loaded_comes_from_the_cache_or_is_admitted_and_compiled() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = |plugin_bytes_max| {
        let config = PluginRuntimeConfig { cache_dir: Some(directory.path().to_owned()), plugin_bytes_max, ..config() };
        PluginRuntime::new(config).unwrap()
    };
    let runs = |runtime: &PluginRuntime| {
        let plugin = runtime.load(hostile_bytes(), "a\nb.wasm").unwrap();
        assert_eq!(plugin.name(), "a\\nb.wasm");
        assert_eq!(plugin.digest(), admit(hostile_bytes()).digest());
        plugin.plan(&[], &patient()).unwrap().nodes.len()
    };
    let first = runtime(usize::MAX);
    assert_eq!(runs(&first), 2);
    let entry = cache_entry(directory.path());
    let written = fs::metadata(&entry).unwrap().modified().unwrap();
    // In this process, and in another one.
    assert_eq!(runs(&first), 2);
    assert!(first.load(hostile_bytes(), "b").unwrap().shares_code_with(&first.load(hostile_bytes(), "c").unwrap()));
    assert_eq!(runs(&runtime(usize::MAX)), 2);
    assert_eq!(fs::metadata(&entry).unwrap().modified().unwrap(), written);
    // What is too large is refused although its code is there.
    let error = runtime(1000).load(hostile_bytes(), "large.wasm").map(drop).unwrap_err();
    assert_eq!(error.code(), "too-large");
    assert!(error.to_string().contains("large.wasm"), "{error}");
    // What is refused leaves nothing behind.
    let mut other = hostile_bytes().to_vec();
    other.extend_from_slice(b"\x00\x01");
    for bytes in [&other[..], b"\0asm", b""] {
        let error = first.load(bytes, "bad.wasm").map(drop).unwrap_err();
        assert!(error.to_string().starts_with("plugin bad.wasm is refused: "), "{error}");
    }
    assert_eq!(cache_entry(directory.path()), entry);
}

#[test]
fn a_digest_is_compiled_once_and_its_code_shared() {
    let runtime = PluginRuntime::new(config()).unwrap();
    let admitted = runtime.admit(hostile_bytes(), "test.wasm").unwrap();
    let plugins: Vec<_> = std::thread::scope(|scope| {
        let compile = || scope.spawn(|| runtime.compile(&admitted).unwrap());
        let threads: Vec<_> = (0..4).map(|_| compile()).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(plugins.iter().all(|plugin| plugin.shares_code_with(&plugins[0])));
    assert_eq!(plugins[0].name(), "test.wasm");
    drop(runtime);
    assert_eq!(plugins[0].plan(&[], &patient()).unwrap().nodes.len(), 2, "the code outlives the runtime");
}

#[test]
fn a_compilation_above_its_cpu_time_is_given_up() {
    let config = PluginRuntimeConfig { compile_cpu_time: Duration::ZERO, ..config() };
    let runtime = PluginRuntime::new(config).unwrap();
    // Large enough to be still compiled at the first look.
    let function = "(func (param f64) (result f64) (local.get 0) ".to_owned()
        + &"(f64.sqrt) (f64.add (local.get 0)) (f64.mul (local.get 0)) ".repeat(20_000)
        + ")";
    let error = match compile_with(&runtime, &function.repeat(3)) {
        Err(error) => error,
        Ok(_) => panic!("compiled"),
    };
    assert_eq!(error.code(), "compile-limit");
    assert!(error.to_string().contains("plugin.compile.cpu-time"), "{error}");
}

fn compile_with(runtime: &PluginRuntime, field: &str) -> Result<Arc<CompiledPlugin>, CompileError> {
    let bytes = handwritten::plugin_with_field(field);
    runtime.compile(&runtime.admit(&bytes, "slow.wasm").unwrap())
}

fn leb128(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(value & 0x7f).unwrap();
        value >>= 7;
        if value == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

fn component_with_section(id: u8, contents: &[u8]) -> Vec<u8> {
    let mut bytes = b"\0asm\x0d\0\x01\0".to_vec();
    bytes.push(id);
    bytes.extend(leb128(contents.len()));
    bytes.extend(contents);
    bytes
}

fn module_with_custom_section(name: &str, contents: &[u8]) -> Vec<u8> {
    let mut section = leb128(name.len());
    section.extend(name.as_bytes());
    section.extend(contents);
    let mut bytes = b"\0asm\x01\0\0\0".to_vec();
    bytes.push(0);
    bytes.extend(leb128(section.len()));
    bytes.extend(section);
    bytes
}

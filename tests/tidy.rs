//! Rules of the source tree that no compiler checks.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use engine_tests::workspace;

/// Names that hide what is inside.
const VAGUE: &[&str] = &["util", "utils", "common", "helper", "helpers", "misc", "core", "types"];

/// Modules and what each may import, as the table of the architecture page has it; a module that may
/// import everything is left out.
fn imports_by_module() -> Vec<(String, Vec<String>)> {
    let page = fs::read_to_string(workspace().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md exists");
    let (_, table) = page.split_once("| module | owns | may import |\n").expect("the table of modules");
    let mut modules = Vec::new();
    for row in table.lines().skip(1).take_while(|row| row.starts_with('|')) {
        let [_, module, _, imports, _] = row.split('|').collect::<Vec<_>>()[..] else { panic!("not a row: {row}") };
        // What stands in parentheses says how much of a module is meant.
        let mut depth = 0;
        let mut outside = imports.to_owned();
        outside.retain(|character| {
            depth += i32::from(character == '(') - i32::from(character == ')');
            depth == 0 && character != ')'
        });
        let names = outside.split(',').map(|name| name.trim().to_owned());
        match imports.trim() {
            "everything" => {}
            "nothing" => modules.push((module.trim().trim_matches('`').to_owned(), Vec::new())),
            _ => modules.push((module.trim().trim_matches('`').to_owned(), names.collect())),
        }
    }
    assert!(10 < modules.len(), "{modules:?}");
    modules
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).expect("source folders are readable") {
        let path = entry.expect("source folders are readable").path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                files.extend(rust_files(&path));
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn sources() -> Vec<(PathBuf, String)> {
    ["engine", "sdk", "plugins", "tests", "benches"]
        .iter()
        .flat_map(|folder| rust_files(&workspace().join(folder)))
        .map(|path| {
            let text = fs::read_to_string(&path).expect("sources are UTF-8");
            (path, text)
        })
        .collect()
}

#[test]
fn every_file_says_what_it_holds() {
    let silent: Vec<_> =
        sources().into_iter().filter(|(_, text)| !text.starts_with("//!")).map(|(path, _)| path).collect();
    assert!(silent.is_empty(), "files without module documentation: {silent:?}");
}

#[test]
fn no_file_has_a_vague_name() {
    let vague: Vec<_> = sources()
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| path.file_stem().is_some_and(|name| VAGUE.iter().any(|vague| name == *vague)))
        .collect();
    assert!(vague.is_empty(), "{vague:?}");
}

/// Top-level modules that a line imports from the crate.
fn imported(line: &str) -> Vec<String> {
    let code = line.split("//").next().unwrap_or("");
    code.match_indices("crate::")
        .filter(|(start, _)| !code[..*start].ends_with('$'))
        .flat_map(|(start, token)| {
            let rest = &code[start + token.len()..];
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            (!name.is_empty()).then_some(name)
        })
        .collect()
}

#[test]
fn modules_import_only_what_the_table_allows() {
    let source = workspace().join("engine/src");
    let mut offences = Vec::new();
    let modules = imports_by_module();
    let known: BTreeSet<&str> = modules.iter().map(|(name, _)| name.as_str()).collect();
    for (module, allowed) in &modules {
        let folder = source.join(module);
        if !folder.exists() {
            continue;
        }
        for file in rust_files(&folder) {
            let text = fs::read_to_string(&file).expect("sources are UTF-8");
            // `use crate::{` spreads over lines: its first-level names stand at one indentation.
            let mut in_group = false;
            for (number, line) in text.lines().enumerate() {
                let mut names = imported(line);
                if line.trim_end() == "use crate::{" {
                    in_group = true;
                    continue;
                }
                if in_group {
                    in_group = line != "};";
                    if line.starts_with("    ") && !line.starts_with("     ") {
                        names.extend(
                            line.trim().split(|c: char| !(c.is_alphanumeric() || c == '_')).next().map(str::to_owned),
                        );
                    }
                }
                for name in names.iter().filter(|name| known.contains(name.as_str())) {
                    if name != module && !allowed.contains(name) {
                        offences.push(format!("{}:{} imports {name}", file.display(), number + 1));
                    }
                }
            }
        }
    }
    assert!(offences.is_empty(), "{}", offences.join("\n"));
}

#[test]
fn every_module_stands_in_the_architecture_page() {
    let page = fs::read_to_string(workspace().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md exists");
    for entry in fs::read_dir(workspace().join("engine/src")).expect("readable") {
        let path = entry.expect("readable").path();
        let name = path.file_stem().expect("modules have names").to_string_lossy().into_owned();
        if name != "lib" && name != "main" {
            assert!(page.contains(&format!("`{name}`")), "ARCHITECTURE.md does not describe `{name}`");
        }
    }
}

#[test]
fn the_plugin_in_the_readme_is_one_that_is_built() {
    let read = |path: &str| fs::read_to_string(workspace().join(path)).expect("readable");
    let (readme, plugin) = (read("README.md"), read("plugins/running_counts/src/lib.rs"));
    let code = plugin.split_once("\n\n").expect("code follows the module documentation").1;
    assert!(readme.contains(code), "README.md shows another program than plugins/running_counts/src/lib.rs");
}

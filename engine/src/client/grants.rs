//! Decides what a job may open: what its submitter named, and no more.
//!
//! The connectors of the graph say what the job will open. A path or address
//! among them is granted if a program argument is just that text (or the value of
//! an argument `--name=value`), if an explicit flag or the configuration covers
//! it, and refused otherwise. So the connector decides whether a named path is
//! read or written, and a named path that no connector opens grants nothing.

use std::{
    fmt,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use crate::{
    base::config::{Configuration, Origin, options},
    connector::{ARTIFACT_PREFIX, HiddenLeftovers, canonical_destination, check_writable_directory},
    graph::{
        job_graph::Grants,
        stream_graph::{ConnectorSpec, Operator, StreamGraph},
    },
};

/// Connectors that open paths, and the option that names the path.
const FILE: (&str, &str) = ("file", "path");
/// Connectors that open connections, and the option that names the address.
const SOCKET: (&str, &str) = ("socket", "address");

/// What a connector does with what it opens.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Access {
    /// Reads a file, a directory or the matches of a glob.
    Read,
    /// Writes into a new or empty directory.
    Write,
    /// Connects to an address or listens on it.
    Net,
}

impl Access {
    fn flag(self) -> &'static str {
        match self {
            Self::Read => "--allow-read",
            Self::Write => "--allow-write",
            Self::Net => "--allow-net",
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Read => "read",
            Self::Write => "write into",
            Self::Net => "connect to",
        })
    }
}

/// Roots and addresses that are granted whatever the program arguments are, as they were given.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ExplicitGrants {
    /// Files, and directories with all below them, that may be read.
    pub read: Vec<String>,
    /// Directories that may be written into, with all below them.
    pub write: Vec<String>,
    /// Addresses `host:port`.
    pub net: Vec<String>,
}

impl ExplicitGrants {
    /// What `sandbox.allow-read`, `sandbox.allow-write` and `sandbox.allow-net` grant.
    pub fn from_configuration(configuration: &Configuration) -> Self {
        let list = |text: Option<String>, separator: char| -> Vec<String> {
            let text = text.unwrap_or_default();
            text.split(separator).map(str::trim).filter(|entry| !entry.is_empty()).map(str::to_owned).collect()
        };
        Self {
            read: list(configuration.get(&options::ALLOW_READ), ':'),
            write: list(configuration.get(&options::ALLOW_WRITE), ':'),
            net: list(configuration.get(&options::ALLOW_NET), ','),
        }
    }

    /// Adds all of `other`.
    pub fn extend(&mut self, other: Self) {
        self.read.extend(other.read);
        self.write.extend(other.write);
        self.net.extend(other.net);
    }
}

/// Where the job will run: decides whether paths can be looked at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Site {
    /// On this machine.
    Here,
    /// Where the JobManager is, which looks at the paths itself.
    Elsewhere,
}

/// A job may not open something.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    /// Nobody named it.
    #[error("{node} wants to {access} {what}, which no program argument names; to allow it, submit with {} {what}", access.flag())]
    NotGranted {
        /// The operator.
        node: String,
        /// What it would do.
        access: Access,
        /// With what.
        what: String,
    },
    /// The file or directory cannot be used.
    #[error("{node} cannot {access} {}: {reason}", path.display())]
    Unusable {
        /// The operator.
        node: String,
        /// What it would do.
        access: Access,
        /// With what.
        path: PathBuf,
        /// Why not; told by `Display`, so that the line stays one.
        reason: std::io::Error,
    },
    /// Output would be mixed with what is there.
    #[error("{node} cannot write into {}: it is not empty, and a file sink needs a new or empty directory{leftovers}", path.display())]
    NotEmpty {
        /// The operator.
        node: String,
        /// The directory.
        path: PathBuf,
        /// What is to be removed, if a killed job left all that is there.
        leftovers: HiddenLeftovers,
    },
    /// Output is wanted where a file is.
    #[error("{node} cannot write into {}: it is a file, and a file sink needs a new or empty directory", path.display())]
    NotADirectory {
        /// The operator.
        node: String,
        /// The file.
        path: PathBuf,
    },
    /// A named path would be read and written.
    #[error("{} is read and {} is written: a program argument grants a path for one of the two; to allow both, name it with --allow-read and --allow-write", read.display(), written.display())]
    ReadAndWritten {
        /// What is read.
        read: PathBuf,
        /// What is written.
        written: PathBuf,
    },
}

impl GrantError {
    /// Stable, for scripts.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotGranted { .. } => "not-granted",
            Self::Unusable { .. } => "unusable-path",
            Self::NotEmpty { .. } => "output-not-empty",
            Self::NotADirectory { .. } => "output-not-a-directory",
            Self::ReadAndWritten { .. } => "read-and-written",
        }
    }
}

/// Something that a connector of the graph will open.
struct Wish {
    node: String,
    access: Access,
    what: String,
    /// Asked for by the submitter's own settings, not by the program.
    by_submitter: bool,
}

fn wish(node: &str, access: Access, connector: &ConnectorSpec) -> Option<Wish> {
    let (access, option) = match connector.name.as_str() {
        name if name == FILE.0 => (access, FILE.1),
        name if name == SOCKET.0 => (Access::Net, SOCKET.1),
        _ => return None,
    };
    let what = connector.options.get(option)?.clone();
    Some(Wish { node: format!("\"{node}\""), access, what, by_submitter: false })
}

/// An artifact came with the job.
fn reads_artifact(source: &ConnectorSpec) -> bool {
    source.name == FILE.0 && source.options.get(FILE.1).is_some_and(|path| path.starts_with(ARTIFACT_PREFIX))
}

fn wishes(stream_graph: &StreamGraph, configuration: &Configuration) -> Vec<Wish> {
    let mut wishes: Vec<Wish> = stream_graph
        .nodes
        .iter()
        .filter_map(|node| match &node.operator {
            Operator::Source(connector) if reads_artifact(connector) => None,
            Operator::Source(connector) => wish(&node.name, Access::Read, connector),
            Operator::Sink(connector) => wish(&node.name, Access::Write, connector),
            Operator::Guest(_) | Operator::GuestSource(_) => None,
        })
        .collect();
    if let Some(directory) = configuration.get(&options::ROW_ERROR_DEAD_LETTER_DIR) {
        let key = options::ROW_ERROR_DEAD_LETTER_DIR.key;
        let by_submitter = configuration.iter().any(|(set, _, origin)| set == key && origin != Origin::Program);
        wishes.push(Wish { node: key.to_owned(), access: Access::Write, what: directory, by_submitter });
    }
    wishes
}

/// Gives the job what its connectors will open, if all of it was granted.
///
/// # Errors
/// Returns the first thing that was not, or that cannot be used.
pub fn decide(
    stream_graph: &StreamGraph,
    args: &[String],
    configuration: &Configuration,
    explicit: &ExplicitGrants,
    site: Site,
) -> Result<Grants, GrantError> {
    let roots = |paths: &[String]| -> Vec<PathBuf> { paths.iter().filter_map(|path| canonical(path).ok()).collect() };
    let (read_roots, write_roots) = (roots(&explicit.read), roots(&explicit.write));
    let mut grants = Grants { read: Vec::new(), write: Vec::new(), net: explicit.net.clone() };
    // Paths that only a program argument grants.
    let (mut named_reads, mut named_writes) = (Vec::new(), Vec::new());
    for Wish { node, access, what, by_submitter } in wishes(stream_graph, configuration) {
        let named = by_submitter || is_named(&what, args);
        let not_granted = || GrantError::NotGranted { node: node.clone(), access, what: what.clone() };
        match access {
            Access::Net => {
                if !named && !explicit.net.contains(&what) {
                    return Err(not_granted());
                }
                grants.net.push(what);
            }
            Access::Read => {
                let path = readable(&what, site).map_err(|reason| GrantError::Unusable {
                    node: node.clone(),
                    access,
                    path: PathBuf::from(&what),
                    reason,
                })?;
                if !read_roots.iter().any(|root| path.starts_with(root)) {
                    if !named {
                        return Err(not_granted());
                    }
                    named_reads.push(path.clone());
                }
                grants.read.push(path);
            }
            Access::Write => {
                let unusable =
                    |reason| GrantError::Unusable { node: node.clone(), access, path: PathBuf::from(&what), reason };
                let path = canonical(&what).map_err(unusable)?;
                if !write_roots.iter().any(|root| path.starts_with(root)) {
                    if !named {
                        return Err(not_granted());
                    }
                    named_writes.push(path.clone());
                }
                if site == Site::Here {
                    // A directory of dead letters may hold those of other jobs.
                    // Nor is there a rule for what a checkpoint's job wrote: its sinks go on from there.
                    if !by_submitter && configuration.get(&options::RECOVERY_PATH).is_none() {
                        check_empty(&node, &path)?;
                    }
                    check_writable_directory(&path).map_err(unusable)?;
                }
                grants.write.push(path);
            }
        }
    }
    check_apart(&grants, &named_reads, &named_writes)?;
    grants.read.extend(read_roots);
    grants.write.extend(write_roots);
    for paths in [&mut grants.read, &mut grants.write] {
        paths.sort();
        paths.dedup();
    }
    grants.net.sort();
    grants.net.dedup();
    Ok(grants)
}

/// True if an argument is the text, or `--name=` and the text.
fn is_named(what: &str, args: &[String]) -> bool {
    args.iter().any(|arg| {
        let value = arg.strip_prefix("--").and_then(|option| option.split_once('=')).map(|(_, value)| value);
        arg == what || value == Some(what)
    })
}

/// What is named only by an argument may not lie within what the job opens the other way.
fn check_apart(grants: &Grants, named_reads: &[PathBuf], named_writes: &[PathBuf]) -> Result<(), GrantError> {
    let pairs = named_reads
        .iter()
        .flat_map(|read| grants.write.iter().map(move |written| (read, written)))
        .chain(named_writes.iter().flat_map(|written| grants.read.iter().map(move |read| (read, written))));
    for (read, written) in pairs {
        if overlap(read, written) {
            return Err(GrantError::ReadAndWritten { read: read.clone(), written: written.clone() });
        }
    }
    Ok(())
}

/// True if one of the two holds the other, or the glob `read` may match within `written`.
fn overlap(read: &Path, written: &Path) -> bool {
    read.components().zip(written.components()).take_while(|(read, _)| read.as_os_str() != "**").all(
        |(read, written)| {
            let (read, written) = (read.as_os_str().to_string_lossy(), written.as_os_str().to_string_lossy());
            read == written || (is_pattern(&read) && glob::Pattern::new(&read).is_ok_and(|p| p.matches(&written)))
        },
    )
}

fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// The part of a path before its first component with a wildcard.
fn without_pattern(path: &Path) -> PathBuf {
    path.components().take_while(|component| !is_pattern(&component.as_os_str().to_string_lossy())).collect()
}

fn canonical(path: &str) -> std::io::Result<PathBuf> {
    canonical_destination(Path::new(path))
}

/// Canonical form of a path to read; of a glob, that of the directory above its
/// first wildcard, and the rest as it is.
fn readable(what: &str, site: Site) -> std::io::Result<PathBuf> {
    let path = Path::new(what);
    if is_pattern(what) && !path.exists() {
        let fixed = without_pattern(path);
        let rest = path.strip_prefix(&fixed).expect("the fixed part is the first part");
        let fixed = if fixed.as_os_str().is_empty() { Path::new(".") } else { fixed.as_path() };
        let directory = match site {
            Site::Here => fixed.canonicalize().map_err(|error| match error.kind() {
                ErrorKind::NotFound => std::io::Error::new(error.kind(), "the pattern matches no file"),
                _ => error,
            })?,
            Site::Elsewhere => canonical_destination(fixed)?,
        };
        return Ok(directory.join(rest));
    }
    match site {
        Site::Here => path.canonicalize(),
        Site::Elsewhere => canonical_destination(path),
    }
}

fn check_empty(node: &str, path: &Path) -> Result<(), GrantError> {
    let listed = std::fs::read_dir(path)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<Vec<_>, _>>());
    match listed {
        Ok(names) if names.is_empty() => Ok(()),
        Ok(names) => {
            let leftovers = HiddenLeftovers::among(names.iter().map(AsRef::as_ref));
            Err(GrantError::NotEmpty { node: node.to_owned(), path: path.to_owned(), leftovers })
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            Err(GrantError::NotADirectory { node: node.to_owned(), path: path.to_owned() })
        }
        Err(reason) => {
            Err(GrantError::Unusable { node: node.to_owned(), access: Access::Write, path: path.to_owned(), reason })
        }
    }
}

/// Makes the paths that connectors open absolute, for a JobManager that may run in another directory.
pub fn make_paths_absolute(stream_graph: &mut StreamGraph) {
    for node in &mut stream_graph.nodes {
        let connector = match &mut node.operator {
            Operator::Source(connector) if !reads_artifact(connector) => connector,
            Operator::Sink(connector) => connector,
            Operator::Source(_) | Operator::Guest(_) | Operator::GuestSource(_) => continue,
        };
        if connector.name == FILE.0
            && let Some(path) = connector.options.get_mut(FILE.1)
            && let Ok(absolute) = std::path::absolute(&*path)
            && let Some(absolute) = absolute.to_str()
        {
            *path = absolute.to_owned();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::stream_graph::{ChainingStrategy, StreamNode};

    fn graph(operators: &[(&str, bool, &str)]) -> StreamGraph {
        let node = |(index, (connector, is_source, value)): (usize, &(&str, bool, &str))| {
            let option = if *connector == "socket" { "address" } else { "path" };
            let spec = ConnectorSpec {
                name: (*connector).to_owned(),
                options: [(option.to_owned(), (*value).to_owned())].into(),
            };
            StreamNode {
                id: u32::try_from(index).expect("few nodes"),
                name: format!("{connector} {index}"),
                operator: if *is_source { Operator::Source(spec) } else { Operator::Sink(spec) },
                uid: None,
                uid_hash: None,
                parallelism: None,
                max_parallelism: None,
                slot_sharing_group: None,
                co_location_group: None,
                chaining: ChainingStrategy::Always,
                buffer_timeout: None,
                input_types: Vec::new(),
                output_type: None,
                key_type: None,
                states: Vec::new(),
                generates_watermarks: false,
            }
        };
        StreamGraph { nodes: operators.iter().enumerate().map(node).collect(), ..StreamGraph::default() }
    }

    struct Files {
        root: tempfile::TempDir,
    }

    impl Files {
        fn new() -> Self {
            let root = tempfile::tempdir().expect("a directory");
            for name in ["in.txt", "logs/a.log", "full/part"] {
                let path = root.path().join(name);
                std::fs::create_dir_all(path.parent().expect("within the root")).expect("made");
                std::fs::write(path, "x").expect("written");
            }
            Self { root }
        }

        fn path(&self, name: &str) -> String {
            self.root.path().canonicalize().expect("there").join(name).to_str().expect("text").to_owned()
        }
    }

    fn run(operators: &[(&str, bool, &str)], args: &[&str], explicit: &ExplicitGrants) -> Result<Grants, String> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        decide(&graph(operators), &args, &Configuration::default(), explicit, Site::Here)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_named_path_is_granted_for_what_its_connector_does() {
        let files = Files::new();
        let (input, output) = (files.path("in.txt"), files.path("new/out"));
        let operators = [("file", true, input.as_str()), ("file", false, output.as_str())];
        let expected = Grants { read: vec![input.clone().into()], write: vec![output.clone().into()], net: vec![] };
        let none = ExplicitGrants::default();
        assert_eq!(run(&operators, &["--input", &input, "--output", &output], &none), Ok(expected.clone()));
        let joined = [format!("--input={input}"), format!("--output={output}")];
        assert_eq!(run(&operators, &[&joined[0], &joined[1]], &none), Ok(expected));
        // Paths that nothing opens grant nothing.
        assert_eq!(run(&[], &["/etc/passwd"], &none), Ok(Grants::default()));
    }

    #[test]
    fn what_nobody_named_is_refused_with_the_flag() {
        let files = Files::new();
        let (input, output) = (files.path("in.txt"), files.path("out"));
        let none = ExplicitGrants::default();
        assert_eq!(
            run(&[("file", true, &input)], &[&format!("x{input}")], &none),
            Err(format!(
                "\"file 0\" wants to read {input}, which no program argument names; to allow it, submit with \
                 --allow-read {input}"
            ))
        );
        let error = run(&[("file", false, &output)], &[], &none).expect_err("not named");
        assert!(error.ends_with(&format!("--allow-write {output}")), "{error}");
        let error = run(&[("socket", true, "localhost:9")], &["localhost:90"], &none).expect_err("not named");
        assert!(error.ends_with("--allow-net localhost:9"), "{error}");
    }

    #[test]
    fn explicit_roots_cover_what_lies_below() {
        let files = Files::new();
        let explicit = ExplicitGrants {
            read: vec![files.path("logs")],
            write: vec![files.path("")],
            net: vec!["db:1".to_owned()],
        };
        let (inside, outside) = (files.path("logs/a.log"), files.path("in.txt"));
        let grants = run(&[("file", true, &inside), ("socket", false, "db:1")], &[], &explicit).expect("covered");
        assert_eq!(grants.read, [PathBuf::from(files.path("logs")), PathBuf::from(&inside)]);
        assert_eq!(grants.net, ["db:1"]);
        assert!(run(&[("file", true, &outside)], &[], &explicit).is_err());
        let sly = files.path("logs/../in.txt");
        assert!(run(&[("file", true, &sly)], &[], &explicit).is_err(), "the canonical path counts");
    }

    #[test]
    fn a_glob_below_a_directory_that_is_not_there_matches_nothing() {
        let files = Files::new();
        let glob = files.path("no/such/*.log");
        let refused = run(&[("file", true, &glob)], &[&glob], &ExplicitGrants::default()).expect_err("it is not there");
        assert!(refused.to_string().ends_with(&format!("{glob}: the pattern matches no file")), "{refused}");
    }

    #[test]
    fn globs_are_granted_as_patterns_below_a_canonical_directory() {
        let files = Files::new();
        let glob = files.path("logs/../logs/*.log");
        let grants = run(&[("file", true, &glob)], &[&glob], &ExplicitGrants::default()).expect("named");
        assert_eq!(grants.read, [PathBuf::from(files.path("logs/*.log"))]);
        let missing = files.path("nowhere/*.log");
        assert!(run(&[("file", true, &missing)], &[&missing], &ExplicitGrants::default()).is_err());
    }

    #[test]
    fn outputs_need_a_new_or_empty_directory() {
        let files = Files::new();
        for (name, expected) in [("full", "it is not empty"), ("in.txt", "it is a file")] {
            let path = files.path(name);
            let error = run(&[("file", false, &path)], &[&path], &ExplicitGrants::default()).expect_err("in use");
            assert!(error.contains(expected), "{error}");
            assert!(error.ends_with("needs a new or empty directory"), "{error}");
        }
        for name in [".job-1", ".part-0-0.inprogress", ".part-1-0.inprogress", ".part-2-0.inprogress"] {
            let path = files.path("killed");
            std::fs::create_dir_all(&path).expect("made");
            std::fs::write(Path::new(&path).join(name), "x").expect("written");
        }
        let killed = files.path("killed");
        let error = run(&[("file", false, &killed)], &[&killed], &ExplicitGrants::default()).expect_err("in use");
        let expected = "it holds only hidden files of a job: .job-1, .part-0-0.inprogress, .part-1-0.inprogress \
            and 1 more; if that job was killed and no JobManager will recover it, \
            remove .job-* and .part-*.inprogress there";
        assert!(error.ends_with(expected), "{error}");
        let missing = files.path("none.txt");
        let error = run(&[("file", true, &missing)], &[&missing], &ExplicitGrants::default()).expect_err("missing");
        assert!(error.contains("cannot read"), "{error}");
    }

    #[test]
    fn a_named_path_is_read_or_written_but_not_both() {
        let files = Files::new();
        let none = ExplicitGrants::default();
        let logs = files.path("logs");
        for (read, write, is_refused) in [
            ("logs", "logs/out", true),
            ("logs/*.log", "logs/out", false),
            ("logs/*", "logs/out", true),
            ("logs/*/part", "logs/out", true),
            ("**/part", "out", true),
            ("*.txt", "out", false),
            ("in.txt", "out", false),
            ("logs/a.log", "logs/out", false),
            ("logs", "out", false),
        ] {
            let (read, write) = (files.path(read), files.path(write));
            let outcome = run(&[("file", true, &read), ("file", false, &write)], &[&read, &write], &none);
            assert_eq!(outcome.is_err(), is_refused, "{read} {write}: {outcome:?}");
        }
        let both = ExplicitGrants { read: vec![logs.clone()], write: vec![logs.clone()], net: vec![] };
        let output = files.path("logs/out");
        assert!(run(&[("file", true, &logs), ("file", false, &output)], &[], &both).is_ok());
    }

    #[test]
    fn dead_letters_go_where_the_submitter_says_but_not_where_the_program_says() {
        let files = Files::new();
        let directory = files.path("letters");
        for (origin, is_granted) in [(Origin::Dynamic, true), (Origin::File, true), (Origin::Program, false)] {
            let mut configuration = Configuration::default();
            configuration.set("execution.row-errors.dead-letter.dir", &directory, origin).expect("valid");
            let outcome = decide(&graph(&[]), &[], &configuration, &ExplicitGrants::default(), Site::Here);
            assert_eq!(outcome.is_ok(), is_granted, "{origin}: {outcome:?}");
        }
    }

    #[test]
    fn paths_become_absolute_for_a_job_manager_elsewhere() {
        let mut graph = graph(&[("file", true, "in.txt"), ("socket", true, "in.txt")]);
        make_paths_absolute(&mut graph);
        let option = |index: usize, option: &str| match &graph.nodes[index].operator {
            Operator::Source(connector) => connector.options[option].clone(),
            other => panic!("{other:?}"),
        };
        let here = std::env::current_dir().expect("a directory");
        assert_eq!(PathBuf::from(option(0, "path")), here.join("in.txt"));
        assert_eq!(option(1, "address"), "in.txt");
    }
}

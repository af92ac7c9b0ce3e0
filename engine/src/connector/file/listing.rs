//! Finds the files that a path, directory or glob names, in the order of their names.
//!
//! Files and directories below a directory whose names begin with `.` or `_` are
//! left out, as Flink does: that is how files that are being written are hidden.
//! Each file is checked against the permissions with its links followed.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use super::io_error;
use crate::connector::{ConnectorError, Permissions, artifact_of};

/// Directories are nested at most this deep.
const DEPTH_MAX: usize = 16;
/// Most files of one source; a bound on memory.
const FILES_MAX: usize = 1_000_000;

/// What a source's path names.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Listing {
    /// A file, directory or artifact.
    Path(PathBuf),
    Glob(String),
}

impl Listing {
    /// A text that exists as a path is that path, even with wildcards in its name.
    pub(super) fn new(path: &str) -> Self {
        let has_wildcards = path.contains(['*', '?', '[']) && artifact_of(path.as_ref()).is_none();
        if has_wildcards && !Path::new(path).exists() {
            return Self::Glob(path.to_owned());
        }
        Self::Path(PathBuf::from(path))
    }

    /// Canonical paths of all files, and artifacts by their names, in the order of the names under which they were found.
    ///
    /// # Errors
    /// Returns an error if something cannot be listed or was not granted, or if
    /// the path or glob names nothing.
    pub(super) fn files(&self, permissions: &Permissions) -> Result<Vec<PathBuf>, ConnectorError> {
        let mut found = Found { permissions, entered: BTreeSet::new(), files: Vec::new() };
        match self {
            Self::Path(path) => found.add_named(path)?,
            Self::Glob(pattern) => {
                for path in glob_paths(pattern)? {
                    found.add_named(&path)?;
                }
                if found.files.is_empty() {
                    let nothing = io::Error::new(ErrorKind::NotFound, "the pattern matches no file");
                    return Err(io_error("open", Path::new(pattern))(nothing));
                }
            }
        }
        Ok(found.files)
    }
}

/// Paths that match, sorted.
fn glob_paths(pattern: &str) -> Result<Vec<PathBuf>, ConnectorError> {
    let options = glob::MatchOptions { require_literal_leading_dot: true, ..glob::MatchOptions::new() };
    let paths = glob::glob_with(pattern, options).map_err(|error| {
        let source = io::Error::new(ErrorKind::InvalidInput, error.to_string());
        io_error("open", Path::new(pattern))(source)
    })?;
    let mut matches = Vec::new();
    for path in paths {
        let path = path.map_err(|error| {
            let path = error.path().to_owned();
            io_error("list", &path)(error.into())
        })?;
        if matches.len() == FILES_MAX {
            return Err(too_many(Path::new(pattern)));
        }
        matches.push(path);
    }
    matches.sort();
    Ok(matches)
}

fn too_many(path: &Path) -> ConnectorError {
    io_error("list", path)(io::Error::other(format!("there are more than {FILES_MAX} files")))
}

struct Found<'a> {
    permissions: &'a Permissions,
    /// Canonical directories that were listed; links may lead there again.
    entered: BTreeSet<PathBuf>,
    files: Vec<PathBuf>,
}

impl Found<'_> {
    /// Adds what the user named: a file, or the files of a directory.
    fn add_named(&mut self, path: &Path) -> Result<(), ConnectorError> {
        let canonical = self.permissions.readable(path)?;
        if artifact_of(path).is_some() {
            // Known by its name: a checkpoint may be restored where its file lies elsewhere.
            return self.add_file(path.to_owned());
        }
        let metadata = fs::metadata(&canonical).map_err(io_error("open", path))?;
        if metadata.is_dir() {
            return self.add_directory(canonical, DEPTH_MAX);
        }
        if !metadata.is_file() {
            return Err(io_error("open", path)(io::Error::other("it is neither a file nor a directory")));
        }
        self.add_file(canonical)
    }

    fn add_file(&mut self, canonical: PathBuf) -> Result<(), ConnectorError> {
        if self.files.len() == FILES_MAX {
            return Err(too_many(&canonical));
        }
        if canonical.to_str().is_none() {
            return Err(io_error("open", &canonical)(io::Error::other("its name is not UTF-8: rename it")));
        }
        self.files.push(canonical);
        Ok(())
    }

    fn add_directory(&mut self, directory: PathBuf, depth: usize) -> Result<(), ConnectorError> {
        if !self.entered.insert(directory.clone()) {
            return Ok(());
        }
        let Some(depth) = depth.checked_sub(1) else {
            let deep = io::Error::other(format!("directories are nested more than {DEPTH_MAX} deep"));
            return Err(io_error("list", &directory)(deep));
        };
        let listed = fs::read_dir(&directory)
            .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>());
        let mut paths = listed.map_err(io_error("list", &directory))?;
        paths.sort();
        for path in paths {
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            if name.starts_with(b".") || name.starts_with(b"_") {
                continue;
            }
            // What went away since the directory was read is not there.
            let canonical = match self.permissions.readable(&path) {
                Err(ConnectorError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => continue,
                canonical => canonical?,
            };
            match fs::metadata(&canonical) {
                Ok(metadata) if metadata.is_dir() => self.add_directory(canonical, depth)?,
                Ok(metadata) if metadata.is_file() => self.add_file(canonical)?,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(io_error("open", &path)(error)),
            }
        }
        Ok(())
    }
}

//! Identifiers shared by all components, as newtypes: never bare integers.
//!
//! 16-byte ids print as 32 lower-case hexadecimal digits, as Flink's `AbstractID`.

use std::{fmt, str::FromStr};

use rand::RngCore;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Text is not an id of the named kind.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("\"{text}\" is not a {kind}: expected {digits} hexadecimal digits")]
pub struct ParseIdError {
    kind: &'static str,
    digits: usize,
    text: String,
}

fn parse_hex<const N: usize>(kind: &'static str, text: &str) -> Result<[u8; N], ParseIdError> {
    let error = || ParseIdError { kind, digits: 2 * N, text: text.to_owned() };
    if text.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(error());
    }
    let mut bytes = [0; N];
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(digits).map_err(|_| error())?;
        *byte = u8::from_str_radix(digits, 16).map_err(|_| error())?;
    }
    Ok(bytes)
}

macro_rules! byte_id {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub struct $name([u8; $bytes]);

        impl $name {
            /// Makes an id of the given bytes.
            pub const fn from_bytes(bytes: [u8; $bytes]) -> Self {
                Self(bytes)
            }

            /// Returns the bytes in the order in which they print.
            pub const fn as_bytes(&self) -> &[u8; $bytes] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, formatter)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                parse_hex($kind, text).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    serializer.collect_str(self)
                } else {
                    self.0.as_slice().serialize(serializer)
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if deserializer.is_human_readable() {
                    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
                } else {
                    let bytes = Vec::<u8>::deserialize(deserializer)?;
                    let length = bytes.len();
                    bytes.try_into().map(Self).map_err(|_| {
                        de::Error::custom(format!("{} of {length} bytes", $kind))
                    })
                }
            }
        }
    };
}

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        byte_id!($(#[$doc])* $name, 16, $kind);

        impl $name {
            /// Draws a fresh id.
            pub fn random() -> Self {
                let mut bytes = [0; 16];
                rand::rng().fill_bytes(&mut bytes);
                Self(bytes)
            }
        }
    };
}

random_id!(
    /// One job, from submission to its end, over all restarts.
    JobId, "job id"
);
random_id!(
    /// A promise of one slot to one job.
    AllocationId, "allocation id"
);
random_id!(
    /// One instance of an execution graph; a new JobMaster leader draws a new one.
    ExecutionGraphId, "execution graph id"
);
random_id!(
    /// Fencing token of a Dispatcher's leadership.
    DispatcherId, "dispatcher id"
);
random_id!(
    /// Fencing token of a JobMaster's leadership.
    JobMasterId, "job master id"
);
random_id!(
    /// Fencing token of a ResourceManager's leadership.
    ResourceManagerId, "resource manager id"
);
byte_id!(
    /// An operator, under which its state is kept; see `graph::operator_ids`.
    OperatorId, 16, "operator id"
);
byte_id!(
    /// A vertex of the JobGraph: the operator id of its chain's head.
    JobVertexId, 16, "job vertex id"
);
byte_id!(
    /// The data that one vertex produces for one JobEdge.
    IntermediateDataSetId, 16, "data set id"
);
byte_id!(
    /// SHA-256 of a blob: a plugin or an artifact.
    BlobDigest, 32, "blob digest"
);
byte_id!(
    /// SHA-256 of a stream graph without its parallelism.
    GraphDigest, 32, "graph digest"
);

/// A TaskExecutor or JobMaster process, as registered for heartbeats.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct ResourceId(pub String);

impl fmt::Display for ResourceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A slot of a TaskExecutor.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct SlotId {
    /// The TaskExecutor.
    pub task_executor: ResourceId,
    /// Zero-based.
    pub index: u32,
}

/// One subtask of a vertex, over all its attempts. Prints as `vertex_subtask`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct ExecutionVertexId {
    /// The vertex.
    pub vertex: JobVertexId,
    /// Zero-based.
    pub subtask_index: u32,
}

impl fmt::Display for ExecutionVertexId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}_{}", self.vertex, self.subtask_index)
    }
}

/// One attempt to run a subtask: the fence of every message about a task.
/// Prints as `graph_vertex_subtask_attempt`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct ExecutionAttemptId {
    /// The execution graph that the attempt belongs to.
    pub graph: ExecutionGraphId,
    /// The subtask.
    pub execution_vertex: ExecutionVertexId,
    /// Zero-based.
    pub attempt_number: u32,
}

impl fmt::Display for ExecutionAttemptId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}_{}_{}", self.graph, self.execution_vertex, self.attempt_number)
    }
}

/// What one subtask produces of a data set.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct IntermediateResultPartitionId {
    /// The data set.
    pub data_set: IntermediateDataSetId,
    /// Index of the producing subtask, zero-based.
    pub partition_index: u32,
}

/// A partition as produced by one attempt.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct ResultPartitionId {
    /// The partition.
    pub partition: IntermediateResultPartitionId,
    /// The producing attempt.
    pub producer: ExecutionAttemptId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_print_and_parse_as_lower_case_hexadecimal() {
        let id = JobId::random();
        assert_eq!(id.to_string().len(), 32);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!("AB".repeat(16).parse::<JobId>().map(|id| id.to_string()), Ok("ab".repeat(16)));
    }

    #[test]
    fn text_that_is_no_id_is_refused() {
        let error = "xyz".parse::<JobId>().expect_err("too short");
        assert_eq!(error.to_string(), "\"xyz\" is not a job id: expected 32 hexadecimal digits");
        assert!("+1".repeat(16).parse::<JobId>().is_err());
        assert!("\u{e9}".repeat(16).parse::<JobId>().is_err());
    }

    #[test]
    fn ids_survive_both_codecs() {
        let id = JobId::random();
        let json = serde_json::to_string(&id).expect("serializable");
        assert_eq!(serde_json::from_str::<JobId>(&json).expect("own output"), id);
        let bytes = postcard::to_stdvec(&id).expect("serializable");
        assert_eq!(postcard::from_bytes::<JobId>(&bytes).expect("own output"), id);
    }
}

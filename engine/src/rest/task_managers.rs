//! TaskExecutors, which Flink's REST calls task managers.

use std::sync::Arc;

use axum::{Json, extract::State};
use serde_json::{Value, json};

use super::{RestState, error::RestError, request::Params};
use crate::protocol::job_details::TaskExecutorDetails;

type Answer = Result<Json<Value>, RestError>;

pub(crate) async fn list(State(state): State<Arc<RestState>>) -> Answer {
    let now = state.now();
    let task_executors = state.task_executors().await?;
    let entries: Vec<Value> = task_executors.iter().map(|task_executor| entry(task_executor, now)).collect();
    Ok(Json(json!({ "taskmanagers": entries })))
}

pub(crate) async fn detail(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let task_executor = find(&state, params.path("taskmanagerid")).await?;
    let mut answer = entry(&task_executor, state.now());
    let cores = f64::from(task_executor.cpu_cores) / f64::from(task_executor.slots.max(1));
    let memory = task_executor.memory_bytes / u64::from(task_executor.slots.max(1));
    let allocated: Vec<Value> = task_executor
        .allocated
        .iter()
        .map(|job| json!({ "jobId": job, "resource": resource(cores, memory) }))
        .collect();
    answer["allocatedSlots"] = Value::Array(allocated);
    answer["metrics"] = no_jvm_metrics();
    Ok(Json(answer))
}

pub(crate) async fn find(state: &RestState, id: &str) -> Result<TaskExecutorDetails, RestError> {
    state
        .task_executors()
        .await?
        .into_iter()
        .find(|task_executor| task_executor.id.0 == id)
        .ok_or_else(|| RestError::not_found(format!("TaskExecutor {id} not found")))
}

/// Fields about the parts of a JVM's memory are 0: there are no such parts.
fn entry(task_executor: &TaskExecutorDetails, now: i64) -> Value {
    let slots = task_executor.slots.max(1);
    let share = f64::from(task_executor.free_slots) / f64::from(slots);
    let cores = f64::from(task_executor.cpu_cores);
    let free_memory = task_executor.memory_bytes / u64::from(slots) * u64::from(task_executor.free_slots);
    json!({
        "id": task_executor.id.0,
        "path": format!("engine://{}", task_executor.id),
        "dataPort": -1,
        "jmxPort": -1,
        "timeSinceLastHeartbeat": task_executor.last_heartbeat.0.min(now),
        "slotsNumber": task_executor.slots,
        "freeSlots": task_executor.free_slots,
        "totalResource": resource(cores, task_executor.memory_bytes),
        "freeResource": resource(cores * share, free_memory),
        "hardware": {
            "cpuCores": task_executor.cpu_cores,
            "physicalMemory": task_executor.memory_bytes,
            "freeMemory": 0,
            "managedMemory": 0,
        },
        "memoryConfiguration": {
            "frameworkHeap": 0,
            "taskHeap": 0,
            "frameworkOffHeap": 0,
            "taskOffHeap": 0,
            "networkMemory": 0,
            "managedMemory": 0,
            "jvmMetaspace": 0,
            "jvmOverhead": 0,
            "totalFlinkMemory": task_executor.memory_bytes,
            "totalProcessMemory": task_executor.memory_bytes,
        },
        "blocked": false,
    })
}

fn resource(cores: f64, memory: u64) -> Value {
    json!({
        "cpuCores": cores,
        "taskHeapMemory": memory,
        "taskOffHeapMemory": 0,
        "managedMemory": 0,
        "networkMemory": 0,
        "extendedResources": {},
    })
}

fn no_jvm_metrics() -> Value {
    let names = [
        "heapUsed",
        "heapCommitted",
        "heapMax",
        "nonHeapUsed",
        "nonHeapCommitted",
        "nonHeapMax",
        "directCount",
        "directUsed",
        "directMax",
        "mappedCount",
        "mappedUsed",
        "mappedMax",
        "memorySegmentsAvailable",
        "memorySegmentsTotal",
        "nettyShuffleMemorySegmentsAvailable",
        "nettyShuffleMemorySegmentsUsed",
        "nettyShuffleMemorySegmentsTotal",
        "nettyShuffleMemoryAvailable",
        "nettyShuffleMemoryUsed",
        "nettyShuffleMemoryTotal",
    ];
    let mut metrics: serde_json::Map<String, Value> = names.iter().map(|name| ((*name).to_owned(), json!(0))).collect();
    metrics.insert("garbageCollectors".to_owned(), json!([]));
    Value::Object(metrics)
}

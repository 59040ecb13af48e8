//! Rank tables: JSON files that list servers, their devices, and the ranks on them.

use crate::report::fail;
use serde_json::Value;
use std::collections::BTreeMap;

/// Where a rank is.
#[derive(Debug)]
pub(super) struct Place {
    /// `server_id`
    pub(super) server: String,
    /// `device_id`
    pub(super) device: u32,
}

/// The places of all ranks, from 0 on without gaps.
///
/// # Errors
/// `HCCL_E_PARA` for a text that is no completed table.
pub(super) fn read(text: &str, path: &str, call: &str) -> Result<Vec<Place>, i32> {
    let refused = |why: &str| fail(1, &format!("{call}: {path}: expected a completed rank table, {why}"));
    let table: Value = serde_json::from_str(text).map_err(|e| refused(&e.to_string()))?;
    if table["status"] != "completed" {
        return Err(refused(&format!("found the status {}", table["status"])));
    }
    let mut places = BTreeMap::new();
    for server in table["server_list"].as_array().ok_or_else(|| refused("found no server_list"))? {
        let id = server["server_id"].as_str().ok_or_else(|| refused("found a server without server_id"))?;
        for device in server["device"].as_array().ok_or_else(|| refused("found a server without device"))? {
            // Numbers stand as texts.
            let number = |key: &str| {
                let found = device[key].as_str().and_then(|text| text.parse::<u32>().ok());
                found.ok_or_else(|| refused(&format!("found {key} {}", device[key])))
            };
            let (rank, device) = (number("rank_id")?, number("device_id")?);
            if places.insert(rank, Place { server: id.to_owned(), device }).is_some() {
                return Err(refused(&format!("found rank {rank} twice")));
            }
        }
    }
    match places.keys().copied().eq(0..places.len() as u32) && !places.is_empty() {
        true => Ok(places.into_values().collect()),
        false => Err(refused(&format!("found the ranks {:?}", places.keys()))),
    }
}

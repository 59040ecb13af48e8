//! Process groups compared with those that Megatron's own functions list.

#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

use ms_core::{Grid, GridRules, GridSizes, RankGroup};
use serde_json::Value;

fn golden(name: &str) -> Vec<Value> {
    let path = ms_testing::golden(&format!("topology/{name}.json"));
    let value: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    value.as_array().unwrap().clone()
}

fn check(grid: &Grid, case: &Value) {
    let mut compared = 0;
    for (name, groups) in case.as_object().unwrap().iter().filter(|(_, v)| v.is_array()) {
        let group = RankGroup::ALL.iter().find(|group| group.name() == name);
        let group = group.unwrap_or_else(|| panic!("no group is named {name}"));
        assert_eq!(serde_json::json!(grid.groups(*group)), *groups, "{name} of {case}");
        compared += 1;
    }
    assert!(compared > 10, "{case}");
}

#[test]
fn groups_are_those_of_version_2() {
    for case in golden("rank_groups") {
        let size = |name: &str| case[name][0].as_array().unwrap().len();
        let sizes = GridSizes {
            tp: size("tp"),
            cp: size("cp"),
            pp: size("pp"),
            ep: size("ep"),
            etp: None,
            pp_before_dp: case["order"] == "tp-pp-dp",
            ulysses: case["hybrid_ulysses_degree"].as_u64().unwrap_or(1) as usize,
        };
        let world = case["world"].as_u64().unwrap() as usize;
        check(&Grid::new(world, &sizes, GridRules::V2).unwrap(), &case);
    }
}

#[test]
fn groups_are_those_of_the_head() {
    for case in golden("rank_groups_head") {
        let size = |name: &str| case["flags"][name].as_u64().unwrap() as usize;
        let sizes = GridSizes {
            tp: size("tensor-model-parallel-size"),
            cp: size("context-parallel-size"),
            pp: size("pipeline-model-parallel-size"),
            ep: size("expert-model-parallel-size"),
            etp: Some(size("expert-tensor-parallel-size")),
            ..GridSizes::default()
        };
        let world = case["world"].as_u64().unwrap() as usize;
        check(&Grid::new(world, &sizes, GridRules::Head).unwrap(), &case);
    }
}

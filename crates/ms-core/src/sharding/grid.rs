//! The grid of ranks as dense layers and as experts see it.

use super::divisors::nearest_divisors;
use crate::{Axis, Error, OptimizerSharding, RankGroup, Result, Topology};
use serde::{Deserialize, Serialize};

/// The upstream version whose rules number the ranks and distribute the experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GridRules {
    /// MindSpeed 2.0.0 over Megatron-LM `core_r0.8.0`: experts are distributed over data- and context-parallel ranks and
    /// sharded like dense layers.
    #[default]
    V2,
    /// Megatron-LM `core_v0.12.1`: experts have a tensor-parallel size of their own and are distributed over all ranks of a
    /// stage.
    Head,
}

/// Sizes of a run's axes, as flags give them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridSizes {
    /// Tensor-parallel ranks.
    pub tp: usize,
    /// Context-parallel ranks.
    pub cp: usize,
    /// Pipeline stages.
    pub pp: usize,
    /// Expert-parallel ranks.
    pub ep: usize,
    /// Tensor-parallel ranks of an expert; `None`: as many as dense layers have.
    pub etp: Option<usize>,
    /// Pipeline stages are numbered before data-parallel ranks (`--use-tp-pp-dp-mapping`).
    pub pp_before_dp: bool,
    /// Ulysses ranks inside a context-parallel group (hybrid context parallelism); 1: none.
    pub ulysses: usize,
}

impl Default for GridSizes {
    fn default() -> Self {
        Self { tp: 1, cp: 1, pp: 1, ep: 1, etp: None, pp_before_dp: false, ulysses: 1 }
    }
}

/// Two topologies over the same ranks: dense layers see (tp, cp, dp, pp), experts see (etp, ep, expert dp, pp).
///
/// # Source
/// Megatron-LM `core_r0.8.0` and `core_v0.12.1`, `megatron/core/parallel_state.py`; MindSpeed `2.0.0_core_r0.8.0`,
/// `mindspeed/core/parallel_state.py`. Expected groups: `tests/golden/topology/rank_groups.json`, `rank_groups_head.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grid {
    dense: Topology,
    expert: Topology,
    ulysses: usize,
    optimizer: OptimizerSharding,
}

impl Grid {
    /// The grid of `world` ranks.
    ///
    /// # Errors
    /// [`Error::Topology`] with the conflicting sizes and the nearest that fit.
    pub fn new(world: usize, sizes: &GridSizes, rules: GridRules) -> Result<Self> {
        let GridSizes { tp, cp, pp, ep, etp, pp_before_dp, ulysses } = *sizes;
        let clash = |message: String| Err(Error::Topology(message));
        for (name, size) in [
            ("tensor", tp),
            ("context", cp),
            ("pipeline", pp),
            ("expert", ep),
            ("expert tensor", etp.unwrap_or(1)),
            ("Ulysses", ulysses),
        ] {
            if size == 0 {
                return clash(format!("{name} parallel size: expected at least 1, found 0"));
            }
        }
        let Some(model) = tp.checked_mul(cp).and_then(|n| n.checked_mul(pp)) else {
            return clash(format!("tp {tp} x cp {cp} x pp {pp}: more ranks than can be counted"));
        };
        if world == 0 || !world.is_multiple_of(model) {
            let below = world / model * model;
            let nearest = match below {
                0 => format!("{model} ranks fit"),
                _ => format!("{below} or {} ranks fit", below + model),
            };
            return clash(format!(
                "{world} ranks are not a multiple of tp {tp} x cp {cp} x pp {pp} = {model}; {nearest}"
            ));
        }
        let dp = world / model;
        if !cp.is_multiple_of(ulysses) {
            let near = nearest_divisors(cp, ulysses);
            return clash(format!("cp {cp} is not a multiple of the Ulysses degree {ulysses}; {near}"));
        }
        let etp = match (rules, etp) {
            (GridRules::V2, Some(etp)) if etp != tp && etp != 1 => {
                return clash(format!(
                    "expert tensor parallel size: expected {tp}, as tp has it, or 1, found {etp}"
                ));
            }
            (_, etp) => etp.unwrap_or(tp),
        };
        let stage = world / pp;
        let experts = etp.saturating_mul(ep);
        if !stage.is_multiple_of(experts) {
            let fits =
                divisors(stage / gcd(stage, etp)).into_iter().filter(|d| stage.is_multiple_of(d * etp));
            return clash(format!(
                "the {stage} ranks of a stage are not a multiple of ep {ep} x expert tensor parallel {etp}; ep may be {}",
                list(fits)
            ));
        }
        let edp = stage / experts;
        let dense_sizes = [(Axis::Tp, tp), (Axis::Cp, cp), (Axis::Dp, dp), (Axis::Pp, pp)];
        let expert_sizes = [(Axis::Tp, etp), (Axis::Ep, ep), (Axis::Dp, edp), (Axis::Pp, pp)];
        let (dense_order, expert_order): (&[Axis], &[Axis]) = match (pp_before_dp, rules) {
            (false, _) => {
                (&[Axis::Tp, Axis::Cp, Axis::Dp, Axis::Pp], &[Axis::Tp, Axis::Ep, Axis::Dp, Axis::Pp])
            }
            (true, GridRules::V2) => {
                if cp > 1 || ep > 1 {
                    return clash(format!(
                        "ranks in the order tp-pp-dp: expected cp 1 and ep 1, which that order does not name, found cp \
                         {cp} and ep {ep}"
                    ));
                }
                (&[Axis::Tp, Axis::Pp, Axis::Dp], &[Axis::Tp, Axis::Pp, Axis::Dp])
            }
            (true, GridRules::Head) => {
                (&[Axis::Tp, Axis::Cp, Axis::Pp, Axis::Dp], &[Axis::Tp, Axis::Ep, Axis::Pp, Axis::Dp])
            }
        };
        let this = Self {
            dense: Topology::with_order(dense_order, &dense_sizes)?,
            expert: Topology::with_order(expert_order, &expert_sizes)?,
            ulysses,
            optimizer: OptimizerSharding::default(),
        };
        if pp_before_dp && pp > 1 && tp * cp != experts {
            return clash(format!(
                "experts and dense layers would have different stages: in the order that puts pp before dp, tp {tp} x \
                 cp {cp} must equal expert tensor parallel {etp} x ep {ep}"
            ));
        }
        Ok(this)
    }

    /// A run of one rank.
    pub fn single() -> Self {
        Self::new(1, &GridSizes::default(), GridRules::V2).expect("a grid of one rank is legal")
    }

    /// The same ranks, with this sharding of the optimizer state.
    ///
    /// # Errors
    /// [`Error::Topology`] if ranks that hold the same do not divide into the instances.
    pub fn with_optimizer(self, optimizer: OptimizerSharding) -> Result<Self> {
        optimizer.check(self.alike(false), "parameters")?;
        optimizer.check(self.alike(true), "experts")?;
        Ok(Self { optimizer, ..self })
    }

    /// Ranks that hold the same parameters, or the same experts.
    pub fn alike(&self, experts: bool) -> usize {
        if experts {
            self.expert.size(Axis::Dp)
        } else {
            self.dense.size(Axis::Dp) * self.dense.size(Axis::Cp)
        }
    }

    /// The instance of the optimizer that `rank` is in, as holder of dense parameters or of experts.
    pub fn instance(&self, rank: usize, experts: bool) -> usize {
        let of_alike = if experts {
            self.expert.coord(rank, Axis::Dp)
        } else {
            let cp = self.dense.size(Axis::Cp);
            self.dense.coord(rank, Axis::Dp) * cp + self.dense.coord(rank, Axis::Cp)
        };
        of_alike / self.optimizer.shards(self.alike(experts))
    }

    /// How ranks that hold the same parameters shard the optimizer state.
    pub fn optimizer(&self) -> OptimizerSharding {
        self.optimizer
    }

    /// Axes as dense layers see them.
    pub fn dense(&self) -> &Topology {
        &self.dense
    }

    /// Axes as experts see them: [`Axis::Tp`] shards an expert, [`Axis::Ep`] distributes experts, [`Axis::Dp`] joins the
    /// ranks that hold the same experts.
    pub fn expert(&self) -> &Topology {
        &self.expert
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.dense.world()
    }

    /// Size of an axis as dense layers see it, of [`Axis::Ep`] as experts do.
    pub fn size(&self, axis: Axis) -> usize {
        if axis == Axis::Ep { self.expert.size(axis) } else { self.dense.size(axis) }
    }

    /// Position of `rank` along an axis, as [`Grid::size`].
    pub fn coord(&self, rank: usize, axis: Axis) -> usize {
        if axis == Axis::Ep { self.expert.coord(rank, axis) } else { self.dense.coord(rank, axis) }
    }

    /// Ulysses ranks inside a context-parallel group.
    pub fn ulysses(&self) -> usize {
        self.ulysses
    }

    /// All groups of a kind, ordered by their first rank.
    pub fn groups(&self, group: RankGroup) -> Vec<Vec<usize>> {
        use Axis::{Cp, Dp, Ep, Pp, Tp};
        let dense = |axes: &[Axis]| self.dense.groups(axes);
        let expert = |axes: &[Axis]| self.expert.groups(axes);
        match group {
            RankGroup::Tp => dense(&[Tp]),
            RankGroup::Cp => dense(&[Cp]),
            RankGroup::Dp => dense(&[Dp]),
            RankGroup::Pp => dense(&[Pp]),
            RankGroup::TpCp => dense(&[Tp, Cp]),
            RankGroup::DpCp => dense(&[Dp, Cp]),
            RankGroup::TpPp => dense(&[Tp, Pp]),
            RankGroup::TpDp => dense(&[Tp, Dp]),
            RankGroup::TpDpCp => dense(&[Tp, Dp, Cp]),
            RankGroup::Embedding => dense(&[Pp]).iter().map(|stages| ends(stages)).collect(),
            RankGroup::Ep => expert(&[Ep]),
            RankGroup::TpEp => expert(&[Tp, Ep]),
            RankGroup::TpEpPp => expert(&[Tp, Ep, Pp]),
            RankGroup::DpModuloEp | RankGroup::ExpertDp => expert(&[Dp]),
            RankGroup::ExpertTp => expert(&[Tp]),
            RankGroup::Ulysses => {
                dense(&[Cp]).iter().flat_map(|g| g.chunks(self.ulysses)).map(<[usize]>::to_vec).collect()
            }
            RankGroup::Ring => {
                let ring = |g: &Vec<usize>, first: usize| {
                    g.iter().copied().skip(first).step_by(self.ulysses).collect::<Vec<_>>()
                };
                dense(&[Cp]).iter().flat_map(|g| (0..self.ulysses).map(move |m| ring(g, m))).collect()
            }
            RankGroup::DpCpIntra => self.optimizer.intra(&dense(&[Dp, Cp])),
            RankGroup::DpCpInter => self.optimizer.inter(&dense(&[Dp, Cp])),
            RankGroup::ExpertDpIntra => self.optimizer.intra(&expert(&[Dp])),
            RankGroup::ExpertDpInter => self.optimizer.inter(&expert(&[Dp])),
            RankGroup::World => vec![(0..self.world()).collect()],
        }
    }

    /// The group of a kind that `rank` is in; `None` if it is in none (a middle stage has no embedding).
    pub fn group(&self, group: RankGroup, rank: usize) -> Option<Vec<usize>> {
        self.groups(group).into_iter().find(|g| g.contains(&rank))
    }

    /// `tp 2, dp 4`: the axes larger than 1, or `one rank`.
    pub fn describe(&self) -> String {
        let mut parts = Vec::new();
        for axis in Axis::DEFAULT_ORDER {
            if self.size(axis) > 1 {
                parts.push(format!("{axis} {}", self.size(axis)));
            }
        }
        if self.expert.size(Axis::Tp) != self.dense.size(Axis::Tp) {
            parts.push(format!("expert tp {}", self.expert.size(Axis::Tp)));
        }
        if parts.is_empty() { "one rank".to_owned() } else { parts.join(", ") }
    }
}

/// First and last, or the only one.
fn ends(stages: &[usize]) -> Vec<usize> {
    match stages {
        [first, .., last] => vec![*first, *last],
        other => other.to_vec(),
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn divisors(n: usize) -> Vec<usize> {
    (1..=n).filter(|d| n.is_multiple_of(*d)).collect()
}

fn list(numbers: impl Iterator<Item = usize>) -> String {
    numbers.map(|n| n.to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(world: usize, sizes: GridSizes) -> String {
        Grid::new(world, &sizes, GridRules::V2).unwrap_err().to_string()
    }

    #[test]
    fn experts_may_span_context_parallel_ranks() {
        let sizes = GridSizes { tp: 2, cp: 2, ep: 4, ..GridSizes::default() };
        let grid = Grid::new(8, &sizes, GridRules::V2).unwrap();
        assert_eq!(grid.groups(RankGroup::Ep), [vec![0, 2, 4, 6], vec![1, 3, 5, 7]]);
        assert_eq!(grid.group(RankGroup::DpModuloEp, 3), Some(vec![3]));
        assert_eq!(grid.describe(), "tp 2, cp 2, ep 4, dp 2");
    }

    #[test]
    fn instances_of_the_optimizer_are_neighbours() {
        let sizes = GridSizes { tp: 2, ep: 2, ..GridSizes::default() };
        let grid = Grid::new(16, &sizes, GridRules::V2).unwrap();
        assert_eq!((grid.alike(false), grid.alike(true)), (8, 4));
        let two = grid.clone().with_optimizer(OptimizerSharding::Instances(2)).unwrap();
        let first = |group| two.group(group, 0).unwrap();
        assert_eq!(first(RankGroup::DpCpIntra), [0, 2, 4, 6]);
        assert_eq!(first(RankGroup::ExpertDpIntra), [0, 4]);
        for (inter, experts) in [(RankGroup::DpCpInter, false), (RankGroup::ExpertDpInter, true)] {
            assert_eq!(first(inter), [0, 8]);
            for group in two.groups(inter) {
                let instances: Vec<usize> = group.iter().map(|&r| two.instance(r, experts)).collect();
                assert_eq!(instances, [0, 1]);
            }
        }
        let none = grid.clone().with_optimizer(OptimizerSharding::Replicated).unwrap();
        assert_eq!(none.groups(RankGroup::DpCpInter), none.groups(RankGroup::DpCp));
        assert_eq!(none.group(RankGroup::DpCpIntra, 5), Some(vec![5]));
        let said = grid.with_optimizer(OptimizerSharding::Instances(8)).unwrap_err().to_string();
        let want = "a divisor of the 4 ranks that hold the same experts, found 8; 4 divides it";
        assert!(said.contains(want), "{said}");
    }

    #[test]
    fn the_head_cuts_experts_by_a_size_of_their_own() {
        let sizes = GridSizes { tp: 4, ep: 4, etp: Some(1), ..GridSizes::default() };
        let grid = Grid::new(4, &sizes, GridRules::Head).unwrap();
        assert_eq!(grid.groups(RankGroup::Ep), [vec![0, 1, 2, 3]]);
        assert_eq!(grid.groups(RankGroup::ExpertTp).len(), 4);
    }

    #[test]
    fn sizes_that_clash_are_named_with_those_that_fit() {
        let e = refused(6, GridSizes { tp: 2, pp: 2, ..GridSizes::default() });
        assert!(e.contains("6 ranks") && e.contains("tp 2 x cp 1 x pp 2 = 4") && e.contains("4 or 8"), "{e}");
        let e = refused(4, GridSizes { ep: 3, ..GridSizes::default() });
        assert!(e.contains("ep 3") && e.contains("1, 2, 4"), "{e}");
        let e = refused(4, GridSizes { cp: 2, pp_before_dp: true, ..GridSizes::default() });
        assert!(e.contains("tp-pp-dp"), "{e}");
        let e = refused(6, GridSizes { cp: 6, ulysses: 4, ..GridSizes::default() });
        assert!(e.contains("cp 6") && e.ends_with("degree 4; 3 and 6 divide it"), "{e}");
        assert!(refused(4, GridSizes { tp: 0, ..GridSizes::default() }).contains("at least 1"));
    }
}

//! Truncation of conversations that are longer than a limit.

use super::Turn;

/// How `room` tokens are shared between a prompt of `source` and an answer of `target` tokens.
///
/// A short answer is kept whole, a short prompt too; otherwise both are cut in proportion.
/// Source: MindSpeed-LLM v2.0.0 `mindspeed_llm/tasks/preprocess/templates.py`, `infer_seqlen`.
pub fn shares(source: usize, target: usize, room: usize) -> (usize, usize) {
    let most_target = if target * 2 < room {
        room
    } else if source * 2 < room {
        room - source
    } else {
        // Division first: the rounding of upstream's doubles is part of the result.
        (room as f64 * (target as f64 / (source + target) as f64)) as usize
    };
    let target = most_target.min(target);
    (room.saturating_sub(target).min(source), target)
}

/// Cuts turns so that the total stays within `cutoff`, in proportion to prompt and answer; turns after that are dropped.
pub(super) fn in_proportion(turns: &mut Vec<Turn>, cutoff: usize) {
    by(turns, cutoff, |source, target, rest| {
        if source + target <= rest {
            return (source, target);
        }
        // Division first, as upstream's double arithmetic does it; the product is then truncated.
        let share = rest as f64 * (target as f64 / (source + target) as f64);
        let most_target = (share as usize).max(1);
        (rest - most_target.min(target), most_target)
    });
}

/// Cuts turns to less than `cutoff` tokens, short prompts and answers being kept whole.
pub(super) fn keeping_short(turns: &mut Vec<Turn>, cutoff: usize) {
    by(turns, cutoff.saturating_sub(1), shares);
}

fn by(turns: &mut Vec<Turn>, cutoff: usize, rule: impl Fn(usize, usize, usize) -> (usize, usize)) {
    let mut total = 0;
    let mut kept = 0;
    for turn in turns.iter_mut() {
        if total >= cutoff {
            break;
        }
        let (source, target) = rule(turn.source.len(), turn.target.len(), cutoff - total);
        turn.source.truncate(source);
        turn.target.truncate(target);
        total += turn.source.len() + turn.target.len();
        kept += 1;
    }
    turns.truncate(kept);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(source: usize, target: usize) -> Turn {
        Turn { source: vec![1; source], target: vec![2; target] }
    }

    fn lengths(turns: &[Turn]) -> Vec<(usize, usize)> {
        turns.iter().map(|t| (t.source.len(), t.target.len())).collect()
    }

    #[test]
    fn a_cut_shares_the_room_in_proportion() {
        let mut turns = vec![turn(30, 10), turn(30, 10), turn(5, 5)];
        in_proportion(&mut turns, 60);
        assert_eq!(lengths(&turns), [(30, 10), (15, 5)]);
    }

    #[test]
    fn what_fits_is_not_cut() {
        let mut turns = vec![turn(3, 0), turn(0, 4)];
        in_proportion(&mut turns, 7);
        assert_eq!(turns, [turn(3, 0), turn(0, 4)]);
    }

    #[test]
    fn a_short_answer_is_kept_whole_and_one_place_stays_free() {
        let mut turns = vec![turn(90, 10), turn(1, 1)];
        keeping_short(&mut turns, 51);
        assert_eq!(lengths(&turns), [(40, 10)]);
    }
}

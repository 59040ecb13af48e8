//! The templates of a post-processor: whether one text fits into them.
//!
//! The reference engine takes a template's tokens and texts without looking whether they are there.

use serde_json::Value;

/// Checks every template, in order: each gets as many parts as the one before it has pieces, at first one.
pub(super) fn check(processor: &Value) -> Result<(), String> {
    parts(processor, 1).map(|_| ())
}

/// The number of parts that a processor makes of so many.
fn parts(processor: &Value, given: usize) -> Result<usize, String> {
    if let Some(steps) = processor["processors"].as_array() {
        return steps.iter().try_fold(given, |given, step| parts(step, given));
    }
    if processor["type"] != "TemplateProcessing" {
        return Ok(given);
    }
    let field = match given {
        1 => "single",
        2 => "pair",
        _ => {
            return Err(format!(
                "its post-processor has a template for {given} texts, where only one or two fit"
            ));
        }
    };
    // What is no list of pieces is the engine's to refuse.
    let pieces = processor[field].as_array().map(Vec::as_slice).unwrap_or_default();
    for piece in pieces {
        let token = piece["SpecialToken"]["id"].as_str();
        if let Some(token) = token.filter(|token| processor["special_tokens"].get(token).is_none()) {
            return Err(format!(
                "its post-processor puts {token:?} around a text, which is not in its special_tokens"
            ));
        }
        if piece["Sequence"]["id"] == "B" && given == 1 {
            return Err("its post-processor wants a second text where there is one".into());
        }
    }
    Ok(pieces.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_template_that_one_text_does_not_fit_into_is_refused() {
        let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
        let token = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
        let template = |single: &[&Value]| {
            let pair = [text("A"), text("B")];
            json!({"type": "TemplateProcessing", "single": single, "pair": pair,
                   "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}})
        };
        let sequence = |steps: &[Value]| json!({"type": "Sequence", "processors": steps});
        let good = template(&[&token, &text("A")]);
        let mut nameless = good.clone();
        nameless["special_tokens"] = json!({});
        let wide = template(&[&token, &text("A"), &token]);
        assert_eq!(check(&good), Ok(()));
        assert_eq!(check(&sequence(&[json!({"type": "ByteLevel"}), good.clone()])), Ok(()));
        assert_eq!(check(&sequence(&[good.clone(), good.clone()])), Ok(()));
        for (bad, want) in [
            (template(&[&text("B")]), "a second text"),
            (nameless, "\"<s>\""),
            (sequence(&[wide, good]), "3 texts"),
        ] {
            assert!(check(&bad).unwrap_err().contains(want), "{bad}");
        }
    }
}

pub const ALL: &[(&str, fn())] = &[];

//! The classes, grouped by the parts that their models have.

mod deepseek_v4;
mod dense;
mod experts;
mod first_generation;
mod hunyuan;
mod latent;
mod scaled;
mod state_space;
mod step3p5;

use super::class::Class;

/// The classes of each file. A model without a class gets the first one that can describe it, also within a family.
const FILES: &[&[Class]] = &[
    dense::CLASSES,
    scaled::CLASSES,
    first_generation::CLASSES,
    experts::CLASSES,
    hunyuan::CLASSES,
    latent::CLASSES,
    deepseek_v4::CLASSES,
    step3p5::CLASSES,
    state_space::CLASSES,
];

/// Every class.
pub(crate) fn all() -> impl Iterator<Item = &'static Class> {
    FILES.iter().copied().flatten()
}

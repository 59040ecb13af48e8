//! Data parallelism without buckets: the baseline that the bucketed implementation is tested against.

use crate::buckets::{BucketParam, Bucketing};
use crate::{
    Communicator, DataParallel, DataParallelGroups, Fabric, FlatBuffer, GradBuckets, ReduceOp, Reduction,
    Result, threads,
};
use ms_core::{Arena, DType, GradSink, OptimizerSharding, ParamId, Rng, Shape, Tensor, TensorMut};

/// A separate gradient per parameter, each reduced in full on every rank.
struct EachGradient(Vec<Tensor>);

impl EachGradient {
    /// Zeros of type `dtype` for parameters of these shapes.
    fn zeros(arena: &Arena, dtype: DType, shapes: impl IntoIterator<Item = Shape>) -> Self {
        Self(shapes.into_iter().map(|shape| Tensor::zeros(arena, dtype, shape)).collect())
    }

    /// The sums over the ranks of `comm`, times `factor`.
    fn finish(self, comm: &dyn Communicator, factor: f64) -> Result<Vec<Tensor>> {
        let sum = |grad: Tensor| -> Result<Tensor> {
            let sum = comm.all_reduce("a gradient", grad, ReduceOp::Sum)?.wait()?;
            let scaled = sum.to_reals()?.iter().map(|x| x * factor).collect::<Vec<f64>>();
            Ok(Tensor::from_reals(sum.arena(), sum.dtype(), sum.shape(), &scaled)?)
        };
        self.0.into_iter().map(sum).collect()
    }
}

impl GradSink for EachGradient {
    fn add(
        &mut self,
        p: ParamId,
        work: &mut dyn FnMut(TensorMut<'_>) -> ms_core::Result<()>,
    ) -> ms_core::Result<()> {
        work(self.0[p.0 as usize].whole_mut()?)
    }
}

/// Adds rank `rank`'s gradients of every parameter in two passes, the second of which ends in a different order.
fn fill(sink: &mut dyn GradSink, shapes: &[Shape], rank: usize) -> ms_core::Result<()> {
    let mut rng = Rng::named(rank as u64, "gradients");
    for pass in 0..2 {
        for turn in 0..shapes.len() {
            // As a backward pass does: the last parameters first.
            let i = match pass {
                0 => shapes.len() - 1 - turn,
                _ => (turn + rank) % shapes.len(),
            };
            let (id, shape) = (ParamId(i as u32), shapes[i]);
            sink.add(id, &mut |mut grad| {
                let values = grad.as_mut_slice::<f32>()?;
                values.iter_mut().for_each(|v| *v += rng.uniform() as f32 - 0.5);
                assert_eq!(values.len(), shape.numel());
                Ok(())
            })?;
            sink.finished(id)?;
        }
    }
    Ok(())
}

/// All ranks, with this sharding of the optimizer state.
fn replicas(fabric: &dyn Fabric, keeping: OptimizerSharding) -> Result<DataParallelGroups> {
    let all: Vec<usize> = (0..fabric.world()).collect();
    let alone = fabric.group(&[fabric.rank()])?;
    Ok(match keeping {
        OptimizerSharding::Replicated => DataParallelGroups { intra: alone, inter: fabric.group(&all)? },
        OptimizerSharding::Instances(_) => DataParallelGroups { intra: fabric.group(&all)?, inter: alone },
    })
}

#[test]
fn buckets_give_the_bits_of_gradients_one_by_one() {
    let shapes: Vec<Shape> = [&[40, 3][..], &[7], &[64, 2], &[1], &[129], &[33, 5]].map(Shape::new).into();
    let ways = [(None, false), (Some(100), false), (Some(100), true)];
    let keeping = [OptimizerSharding::Instances(1), OptimizerSharding::Replicated];
    for world in 1..=5 {
        for ((bucket_size, overlap), keeping) in ways.into_iter().flat_map(|w| keeping.map(|k| (w, k))) {
            threads::run(world, |fabric| -> Result<()> {
                let comm = fabric.group(&(0..world).collect::<Vec<_>>())?;
                let device = ms_cpu::device(1)?;
                let mut each = EachGradient::zeros(device.arena(), DType::F32, shapes.clone());
                fill(&mut each, &shapes, comm.rank())?;
                let want = each.finish(&*comm, 0.25)?;
                let placed = shapes.iter().map(|&shape| BucketParam { shape, own_bucket: false }).collect();
                let params = (0..shapes.len()).collect();
                let replicas = replicas(&fabric, keeping)?;
                let flat = FlatBuffer { replicas, params, placed, bucketing: Bucketing::of(bucket_size) };
                let dp = DataParallel::new(&(0..shapes.len()).collect::<Vec<_>>(), vec![flat]);
                let mut grads = GradBuckets::zeros(device.arena(), DType::F32, &dp);
                let mut sink = if overlap {
                    Reduction::overlapped(&dp, &mut grads, |_| 2)
                } else {
                    Reduction::at_the_end(&dp, &mut grads)
                };
                fill(&mut sink, &shapes, fabric.rank())?;
                let got = sink.finish(&device, 0.25)?;
                for slice in dp.slices() {
                    let (want, got) =
                        (want[slice.param].as_slice::<f32>()?, got[slice.bucket].as_slice::<f32>()?);
                    let got = &got[slice.offset..slice.offset + slice.range.len()];
                    let same =
                        want[slice.range.clone()].iter().zip(got).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "parameter {} on {world} ranks, {bucket_size:?} {overlap}", slice.param);
                }
                Ok(())
            })
            .map_err(|(rank, e)| format!("rank {rank}: {e}"))
            .unwrap();
        }
    }
}

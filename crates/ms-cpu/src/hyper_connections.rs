//! Hyper-connections on the CPU.

use super::{CpuBackend, expect, op_span, size, with_float};
use ms_core::{DType, HyperConnectionsBackend, Mixing, Result, Tensor};
use ms_kernels::hyper_connections;

impl HyperConnectionsBackend for CpuBackend {
    fn stream_weights(
        &self,
        mixes: &Tensor,
        base: &Tensor,
        scale: &Tensor,
        mixing: &Mixing,
    ) -> Result<Tensor> {
        let mut w = self.uninit(DType::F32, &mixes.shape());
        op_span!("stream_weights", 40 * mixes.numel(), size(&[mixes, &w]));
        let (mixes, base, scale) = (mixes.as_slice()?, base.as_slice()?, scale.as_slice()?);
        hyper_connections::weights(&self.cpu, w.as_mut_slice()?, mixes, base, scale, mixing)?;
        Ok(w)
    }

    fn stream_weights_backward(
        &self,
        dw: &Tensor,
        mixes: &Tensor,
        base: &Tensor,
        scale: &Tensor,
        mixing: &Mixing,
    ) -> Result<(Tensor, Tensor)> {
        let mut dmixes = self.uninit(DType::F32, &mixes.shape());
        let mut dfixed = Tensor::zeros(&self.arena, DType::F32, [base.numel() + scale.numel()]);
        op_span!("stream_weights_backward", 80 * mixes.numel(), size(&[mixes, dw, &dmixes]));
        hyper_connections::weights_backward(
            &self.cpu,
            dmixes.as_mut_slice()?,
            dfixed.as_mut_slice()?,
            dw.as_slice()?,
            mixes.as_slice()?,
            base.as_slice()?,
            scale.as_slice()?,
            mixing,
        )?;
        Ok((dmixes, dfixed))
    }

    fn collapse(&self, x: &Tensor, w: &Tensor, mixing: &Mixing) -> Result<Tensor> {
        let (tokens, width) = x.as_matrix();
        let mut y = self.uninit(x.dtype(), &[tokens, width / mixing.streams.max(1)]);
        op_span!("collapse", 2 * x.numel(), size(&[x, w, &y]));
        with_float!(x.dtype(), "collapse", E => {
            hyper_connections::collapse(&self.cpu, y.as_mut_slice::<E>()?, x.as_slice()?, w.as_slice()?, mixing)?;
        });
        Ok(y)
    }

    fn collapse_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        w: &Tensor,
        mixing: &Mixing,
    ) -> Result<(Tensor, Tensor)> {
        let mut dx = self.uninit(x.dtype(), &x.shape());
        let mut dw = self.uninit(DType::F32, &w.shape());
        op_span!("collapse_backward", 4 * x.numel(), size(&[x, dy, &dx]));
        with_float!(x.dtype(), "collapse_backward", E => {
            let (to_x, to_w) = (dx.as_mut_slice::<E>()?, dw.as_mut_slice()?);
            let (dy, x, w) = (dy.as_slice()?, x.as_slice()?, w.as_slice()?);
            hyper_connections::collapse_backward(&self.cpu, to_x, to_w, dy, x, w, mixing)?;
        });
        Ok((dx, dw))
    }

    fn expand(&self, x: &Tensor, y: &Tensor, w: &Tensor, mixing: &Mixing) -> Result<Tensor> {
        expect("expand", "y", y, x.dtype(), &y.shape())?;
        let mut out = self.uninit(x.dtype(), &x.shape());
        op_span!("expand", 2 * x.numel() * (mixing.streams + 1), size(&[x, y, w, &out]));
        with_float!(x.dtype(), "expand", E => {
            let (to, x, y) = (out.as_mut_slice::<E>()?, x.as_slice()?, y.as_slice()?);
            hyper_connections::expand(&self.cpu, to, x, y, w.as_slice()?, mixing)?;
        });
        Ok(out)
    }

    fn expand_backward(
        &self,
        dout: &Tensor,
        x: &Tensor,
        y: &Tensor,
        w: &Tensor,
        mixing: &Mixing,
    ) -> Result<[Tensor; 3]> {
        let mut dx = self.uninit(x.dtype(), &x.shape());
        let mut dy = self.uninit(x.dtype(), &y.shape());
        let mut dw = self.uninit(DType::F32, &w.shape());
        op_span!("expand_backward", 4 * x.numel() * (mixing.streams + 1), size(&[x, y, dout, &dx, &dy]));
        with_float!(x.dtype(), "expand_backward", E => {
            let to = (dx.as_mut_slice::<E>()?, dy.as_mut_slice()?, dw.as_mut_slice()?);
            let (dout, x, y) = (dout.as_slice()?, x.as_slice()?, y.as_slice()?);
            hyper_connections::expand_backward(&self.cpu, to, dout, x, y, w.as_slice()?, mixing)?;
        });
        Ok([dx, dy, dw])
    }
}

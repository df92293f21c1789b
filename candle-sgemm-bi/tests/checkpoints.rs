//! `Linear` in place of `candle_nn::Linear`: names, shapes, initialisation, checkpoints both ways,
//! conversion, and a training loop over a `VarMap`.

mod common;

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::{Optimizer, SGD, VarBuilder, VarMap};
use candle_sgemm_bi::{Linear, WeightLayout, linear, linear_b, linear_no_bias};
use common::*;

fn builder(varmap: &VarMap, dtype: DType) -> VarBuilder<'static> {
    VarBuilder::from_varmap(varmap, dtype, &Device::Cpu)
}

fn shapes(varmap: &VarMap) -> Vec<(String, Vec<usize>, DType)> {
    let data = varmap.data().lock().unwrap();
    let of = |(name, var): (&String, &candle_core::Var)| {
        (name.clone(), var.dims().to_vec(), var.dtype())
    };
    let mut shapes: Vec<_> = data.iter().map(of).collect();
    shapes.sort_by(|a, b| a.0.cmp(&b.0));
    shapes
}

#[test]
fn names_shapes_and_initialisation_are_candles() {
    for dtype in DTYPES {
        let (ours, theirs) = (VarMap::new(), VarMap::new());
        let (a, b) = (builder(&ours, dtype), builder(&theirs, dtype));
        linear(64, 32, a.pp("full")).unwrap();
        candle_nn::linear(64, 32, b.pp("full")).unwrap();
        linear_no_bias(3, 4, a.pp("bare")).unwrap();
        candle_nn::linear_no_bias(3, 4, b.pp("bare")).unwrap();
        for (name, bias) in [("with", true), ("without", false)] {
            let layer = linear_b(5, 6, bias, a.pp(name)).unwrap();
            assert_eq!(layer.bias().is_some(), bias);
            candle_nn::linear_b(5, 6, bias, b.pp(name)).unwrap();
        }
        assert_eq!(shapes(&ours), shapes(&theirs));

        let data = ours.data().lock().unwrap();
        // Kaiming-normal: deviation √2/√64; 2,048 samples stay within a tenth of it.
        let weight = values(data["full.weight"].as_tensor());
        let square = weight.iter().map(|w| w * w).sum::<f32>() / weight.len() as f32;
        let deviation = (2f32 / 64.0).sqrt();
        assert!(
            (square.sqrt() / deviation - 1.0).abs() < 0.1,
            "{}",
            square.sqrt()
        );
        assert!(
            values(data["full.bias"].as_tensor())
                .iter()
                .all(|b| b.abs() <= 1.0 / 8.0)
        );
    }
}

#[test]
fn checkpoints_load_both_ways() {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let x = random(1, (3, 8), DType::F32);
    let save = |name: &str, make: &dyn Fn(VarBuilder<'static>) -> Result<Linear>| {
        let varmap = VarMap::new();
        let layer = make(builder(&varmap, DType::F32)).unwrap();
        let path = directory.join(name);
        varmap.save(&path).unwrap();
        (path, layer)
    };
    let saved = [
        save("ours.safetensors", &|vb| linear(8, 5, vb.pp("layer"))),
        save("theirs.safetensors", &|vb| {
            candle_nn::linear(8, 5, vb.pp("layer")).map(Linear::from)
        }),
    ];
    for (path, original) in saved {
        let mut varmap = VarMap::new();
        let ours = linear(8, 5, builder(&varmap, DType::F32).pp("layer")).unwrap();
        varmap.load(&path).unwrap();
        let mut varmap = VarMap::new();
        let theirs = candle_nn::linear(8, 5, builder(&varmap, DType::F32).pp("layer")).unwrap();
        varmap.load(&path).unwrap();
        let expected = original.forward(&x).unwrap();
        assert_same("ours", &ours.forward(&x).unwrap(), &expected);
        let theirs = Linear::from_candle(&theirs);
        assert_same("theirs", &theirs.forward(&x).unwrap(), &expected);

        // A file read without a VarMap.
        let bytes = std::fs::read(path).unwrap();
        let vb = VarBuilder::from_buffered_safetensors(bytes, DType::F32, &Device::Cpu).unwrap();
        let loaded = linear(8, 5, vb.pp("layer")).unwrap();
        assert_same("buffered", &loaded.forward(&x).unwrap(), &expected);
        assert!(
            linear(9, 5, vb.pp("layer")).is_err(),
            "a shape that the file does not have"
        );
        assert!(
            linear(8, 5, vb.pp("absent")).is_err(),
            "a name that the file does not have"
        );
    }
}

#[test]
fn conversion_shares_tensors() {
    let (w, b) = (variable(1, (5, 8), DType::F32), variable(2, 5, DType::F32));
    let theirs = candle_nn::Linear::new(w.as_tensor().clone(), Some(b.as_tensor().clone()));
    for ours in [
        Linear::from_candle(&theirs),
        Linear::from(&theirs),
        Linear::from(theirs.clone()),
        Linear::from(theirs.clone()).clone(),
    ] {
        assert_eq!(ours.weight().id(), w.id());
        assert_eq!(ours.bias().unwrap().id(), b.id());
        assert_eq!(ours.layout(), WeightLayout::OutIn);
        for back in [ours.to_candle().unwrap(), (&ours).try_into().unwrap()] {
            assert_eq!(back.weight().id(), w.id());
            assert_eq!(back.bias().unwrap().id(), b.id());
        }
        assert!(format!("{ours:?}").contains("Linear"));
    }

    // [in, out]: Candle sees a transposed view of the same variable, and trains it.
    let w = variable(1, (8, 5), DType::F32);
    let ours = Linear::new(w.as_tensor().clone(), None).with_layout(WeightLayout::InOut);
    let theirs = ours.to_candle().unwrap();
    assert_eq!(theirs.weight().dims(), [5, 8]);
    let x = random(3, (2, 8), DType::F32);
    let grads = theirs
        .forward(&x)
        .unwrap()
        .sum_all()
        .unwrap()
        .backward()
        .unwrap();
    assert_eq!(grads.get(&w).unwrap().dims(), [8, 5]);
    let again = Linear::from(theirs);
    assert_same(
        "again",
        &again.forward(&x).unwrap(),
        &ours.forward(&x).unwrap(),
    );
}

/// Two layers, trained by Candle's own SGD on a sum of squares.
fn train(layout: WeightLayout, dtype: DType, steps: usize) -> (Vec<f32>, Vec<Tensor>) {
    let varmap = VarMap::new();
    let vb = builder(&varmap, dtype);
    let layers = [
        linear(6, 9, vb.pp("a")).unwrap(),
        linear(9, 2, vb.pp("b")).unwrap(),
    ];
    // The same start in every run: Candle's generator on the CPU cannot be seeded.
    for (seed, layer) in (1..).zip(&layers) {
        let data = varmap.data().lock().unwrap();
        for var in data.values() {
            let named =
                var.id() == layer.weight().id() || Some(var.id()) == layer.bias().map(Tensor::id);
            if named {
                let start = (random(seed, var.dims(), dtype) * 0.5).unwrap();
                var.set(&start).unwrap();
            }
        }
    }
    // [in, out] views of the same variables.
    let layers = layers.map(|layer| match layout {
        WeightLayout::OutIn => layer,
        WeightLayout::InOut => {
            let weight = layer.weight().t().unwrap();
            Linear::new(weight, layer.bias().cloned()).with_layout(layout)
        }
    });
    let x = random(11, (32, 6), dtype);
    let target = random(12, (32, 2), dtype);
    let mut vars: Vec<_> = varmap.data().lock().unwrap().clone().into_iter().collect();
    vars.sort_by(|a, b| a.0.cmp(&b.0));
    let vars: Vec<_> = vars.into_iter().map(|(_, var)| var).collect();
    let mut sgd = SGD::new(vars.clone(), 0.01).unwrap();
    let losses = (0..steps).map(|_| {
        let hidden = layers[0].forward(&x).unwrap().relu().unwrap();
        let error = (layers[1].forward(&hidden).unwrap() - &target).unwrap();
        let loss = error.sqr().unwrap().sum_all().unwrap();
        sgd.backward_step(&loss).unwrap();
        values(&loss)[0]
    });
    let losses = losses.collect();
    (
        losses,
        vars.iter()
            .map(|var| var.as_tensor().copy().unwrap())
            .collect(),
    )
}

#[test]
fn a_varmap_trains_to_the_same_bits() {
    for dtype in [DType::F32, DType::BF16] {
        let (losses, weights) = train(WeightLayout::OutIn, dtype, 30);
        assert!(losses[29] < 0.7 * losses[0], "{losses:?}");
        for layout in [WeightLayout::OutIn, WeightLayout::InOut] {
            // The layout is a view here, and views' gradients are exact.
            let (_, again) = train(layout, dtype, 30);
            for (i, (got, expected)) in again.iter().zip(&weights).enumerate() {
                assert_same(&format!("{dtype:?} {layout:?} variable {i}"), got, expected);
            }
        }
    }
}

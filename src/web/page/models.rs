//! Step one: the device in plain words, the choice of a model, and its way onto the GPU.

use leptos::prelude::*;
use wasm_bindgen::JsCast;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::File;

use super::ladder::Rung;
use super::loading::{self, Loading, LoadingTiles};
use super::notice::FaultNotice;
use super::pick::{DropPlace, FileButton};
use super::{Shared, format, trust};
use crate::web::protocol::{Answer, Command, Device, Fault, FaultKind, Kept, KeptFile, LoadChoice, Model, ModelSource, Phase};
use crate::web::{part_addresses, part_names};

/// What the visitor chose.
pub enum Chosen {
    /// One file, or all parts of a split model in any order.
    Files(Vec<File>),
    /// With the SHA-256 that it must have, where that is known. The address of one part of a split model stands for all.
    Url(String, Option<String>),
    Kept(String),
    /// As it was loaded before.
    Source(ModelSource),
}

impl Chosen {
    /// What it is called, and what its first tile does.
    fn words(&self) -> (String, Option<&'static str>) {
        match self {
            Chosen::Files(files) => (files.first().map(File::name).unwrap_or_default(), Some("Copy")),
            Chosen::Url(url, _) => (last(url), Some("Download")),
            Chosen::Kept(name) => (name.clone(), None),
            Chosen::Source(ModelSource::Kept { name }) => (name.clone(), None),
            Chosen::Source(ModelSource::File { file }) => (file.name(), None),
            Chosen::Source(ModelSource::Url { url }) => (last(url), None),
        }
    }
}

fn choose(shared: Shared, chosen: Chosen) {
    if shared.loading.with_untracked(Option::is_some) || shared.runs.job.with_untracked(Option::is_some) {
        return;
    }
    shared.fault.set(None);
    shared.remark.set(None);
    spawn_local(async move {
        let result = bring_now(shared, chosen).await;
        end(shared, result);
    });
}

/// Puts a model on the GPU, showing its way there; the caller says what becomes of a fault.
pub async fn bring_now(shared: Shared, chosen: Chosen) -> Result<(), Fault> {
    let (name, fetch) = chosen.words();
    shared.loading.set(Some(Loading::new(&name, fetch)));
    let result = bring(shared, chosen).await;
    if result.is_ok() {
        let first_run = shared.model.with_untracked(|model| model.as_ref().is_some_and(|model| model.warm_up_seconds.is_some()));
        loading::change(shared, |loading| loading.close(first_run));
        shared.way.set(shared.loading.get_untracked());
    }
    shared.loading.set(None);
    shared.refresh_kept();
    result
}

/// Puts a model from a known source on the GPU.
pub fn load(shared: Shared, source: ModelSource) {
    choose(shared, Chosen::Source(source));
}

fn end(shared: Shared, result: Result<(), Fault>) {
    match result {
        Err(fault) if fault.kind == FaultKind::Cancelled => shared.remark.set(Some("Stopped. What has arrived is kept.".into())),
        Err(fault) => shared.fault.set(Some(fault)),
        Ok(()) => {}
    }
}

async fn bring(shared: Shared, chosen: Chosen) -> Result<(), Fault> {
    if matches!(chosen, Chosen::Files(_) | Chosen::Url(..)) {
        ask_to_persist().await;
    }
    let source = match chosen {
        Chosen::Kept(name) => ModelSource::Kept { name },
        Chosen::Source(source) => source,
        Chosen::Files(files) => {
            let files = in_order(files)?;
            let alone = (files.len() == 1).then(|| ModelSource::File { file: files[0].clone() });
            let parts = files.into_iter().map(|file| (file.name(), Command::Import { file })).collect();
            keep_or_use(shared, parts, alone).await?
        }
        Chosen::Url(url, sha256) => {
            let addresses = part_addresses(&url);
            // A promised hash is that of one file.
            let sha256 = sha256.filter(|_| addresses.len() == 1);
            let part = |url: String| (last(&url), Command::Download { url, sha256: sha256.clone() });
            keep_or_use(shared, addresses.into_iter().map(part).collect(), Some(ModelSource::Url { url })).await?
        }
    };
    go_on(shared).await?;
    upload(shared, source, LoadChoice::default()).await
}

/// The last part of an address, without what stands behind a question mark.
fn last(url: &str) -> String {
    let path = url.split(['?', '#']).next().unwrap_or(url);
    path.rsplit('/').next().unwrap_or(path).to_string()
}

/// The parts of a split model in their order; one file as it is.
fn in_order(files: Vec<File>) -> Result<Vec<File>, Fault> {
    let unfit = |words: String| Fault::new(FaultKind::ModelFile, words);
    let Some(first) = files.first().map(File::name) else { return Err(unfit("No file was chosen.".into())) };
    let names = part_names(&first);
    if let Some(other) = files.iter().find(|file| !names.contains(&file.name())) {
        return Err(unfit(format!(
            "{} and {first} are not parts of one model. Choose one file, or all parts of a split model together.",
            other.name()
        )));
    }
    let part = |(i, name): (usize, &String)| {
        files.iter().find(|file| file.name() == *name).cloned().ok_or_else(|| {
            unfit(format!(
                "{first} is a part of a split model, and part {} of {}, {name}, was not chosen. Choose all parts together.",
                i + 1,
                names.len()
            ))
        })
    };
    names.iter().enumerate().map(part).collect()
}

/// Keeps all parts of a model, and gives where the first one is kept.
async fn keep_or_use(shared: Shared, parts: Vec<(String, Command)>, otherwise: Option<ModelSource>) -> Result<ModelSource, Fault> {
    let count = parts.len();
    let mut first = None;
    for (i, (name, command)) in parts.into_iter().enumerate() {
        if count > 1 {
            loading::change(shared, |loading| loading.name = format!("{name}: part {} of {count}", i + 1));
        }
        go_on(shared).await?;
        let kept = keep_or_use_one(shared, command, otherwise.clone()).await;
        let full = match &kept {
            Ok(kept) => !matches!(kept, ModelSource::Kept { .. }),
            Err(fault) => fault.kind == FaultKind::Quota,
        };
        // Some parts alone are of no use, and would fill the storage.
        if full && let Some(ModelSource::Kept { name }) = &first {
            let _ = shared.call(Command::Delete { name: name.clone() }).answer().await;
            shared.refresh_kept();
        }
        match kept? {
            ModelSource::Kept { name: kept } if count > 1 && kept != name => {
                return Err(Fault::new(
                    FaultKind::ModelFile,
                    format!(
                        "A file of the name {name} from elsewhere is kept already, so this part came to be called {kept}. Delete both, then choose the model again."
                    ),
                ));
            }
            kept @ ModelSource::Kept { .. } => first = first.or(Some(kept)),
            // Used from where it is, parts and all.
            elsewhere => return Ok(elsewhere),
        }
    }
    first.ok_or_else(|| Fault::new(FaultKind::Input, "No file was chosen."))
}

/// An error where the visitor stopped after the last step was done; waits where it was paused.
async fn go_on(shared: Shared) -> Result<(), Fault> {
    if loading::stopping(shared) || loading::paused(shared) && !loading::wait(shared).await {
        return Err(Fault::new(FaultKind::Cancelled, "Stopped."));
    }
    Ok(())
}

/// Keeps the bytes; where the browser has no room, uses them from where they are, if that can be.
async fn keep_or_use_one(shared: Shared, keep: Command, otherwise: Option<ModelSource>) -> Result<ModelSource, Fault> {
    loop {
        match loading::follow(shared, keep.clone()).await {
            Ok(Answer::Stored { name }) => {
                shared.refresh_kept();
                return Ok(ModelSource::Kept { name });
            }
            Ok(_) => return Err(Fault::new(FaultKind::Crash, "The engine gave an answer of another kind.")),
            Err(fault) if fault.kind == FaultKind::Cancelled && loading::paused(shared) => {
                shared.refresh_kept();
                if !loading::wait(shared).await {
                    return Err(fault);
                }
            }
            Err(fault) if fault.kind == FaultKind::Quota => {
                let Some(otherwise) = otherwise else { return Err(fault) };
                // Bytes that go straight to the GPU in pieces are never there as a whole to be hashed.
                let checked = if matches!(otherwise, ModelSource::Url { .. }) { " Its SHA-256 is not verified." } else { "" };
                shared.remark.set(Some(format!(
                    "{} The model is used without being kept: after a reload, choose it again.{checked}",
                    fault.message
                )));
                return Ok(otherwise);
            }
            Err(fault) => return Err(fault),
        }
    }
}

/// Puts the bytes of a source on the GPU, as the step of a [`Loading`] that is shown.
pub async fn upload(shared: Shared, source: ModelSource, options: LoadChoice) -> Result<(), Fault> {
    shared.model.set(None);
    shared.way.set(None);
    loading::change(shared, |loading| loading.enter(Phase::Upload));
    match loading::follow(shared, Command::Load { source: source.clone(), options }).await? {
        Answer::Loaded(model) => {
            shared.source.set_value(Some(source));
            shared.requests.update(trust::Requests::mark);
            shared.model.set(Some(model));
            Ok(())
        }
        _ => Err(Fault::new(FaultKind::Crash, "The engine gave an answer of another kind.")),
    }
}

/// Asks the browser not to clear the models when space runs low. Only the page may ask, and a no changes nothing here.
async fn ask_to_persist() {
    // Absent at insecure addresses.
    let storage = web_sys::window().and_then(|window| js_sys::Reflect::get(&window.navigator(), &"storage".into()).ok());
    if let Some(storage) = storage.and_then(|storage| storage.dyn_into::<web_sys::StorageManager>().ok())
        && let Ok(promise) = storage.persist()
    {
        let _ = JsFuture::from(promise).await;
    }
}

#[component]
pub fn ModelStep(shared: Shared) -> impl IntoView {
    // After a model is there the choice folds away; this opens it again.
    let changing = RwSignal::new(false);
    Effect::new(move |_| {
        if shared.model.with(Option::is_some) {
            changing.set(false);
        }
    });
    let choosing = move || shared.loading.with(Option::is_none) && (shared.model.with(Option::is_none) || changing.get());
    view! {
        <section class="step" aria-labelledby="model-title">
            <h2 id="model-title"><span class="number" aria-hidden="true">"1"</span>"Model"</h2>
            <div class="panel">
                <DeviceLine shared=shared/>
                {move || shared.fault.get().map(|fault| view! {
                    <FaultNotice fault=fault>
                        {move || shared.source.get_value().filter(|_| shared.model.with(Option::is_none) && shared.loading.with(Option::is_none)).map(|source| view! {
                            <button type="button" class="button" on:click=move |_| { shared.fault.set(None); load(shared, source.clone()) }>"Load the model again"</button>
                        })}
                        <button type="button" class="button quiet" on:click=move |_| shared.fault.set(None)>"Close this message"</button>
                    </FaultNotice>
                })}
                {move || shared.remark.get().map(|text| view! { <p class="remark" role="status">{text}</p> })}
                <Show when=move || shared.loading.with(Option::is_some)><LoadingTiles shared=shared/></Show>
                {move || (shared.loading.with(Option::is_none)).then(|| shared.model.get()).flatten().map(|model| view! {
                    <ModelLine model=model way=shared.way changing=changing/>
                })}
                <Show when=choosing><Chooser shared=shared/></Show>
            </div>
        </section>
    }
}

#[component]
fn DeviceLine(shared: Shared) -> impl IntoView {
    let described = move || match shared.device.get() {
        None => {
            view! { <p class="device" role="status"><span class="dot wait" aria-hidden="true"></span>"Asking the browser for a GPU…"</p> }
                .into_any()
        }
        Some(Ok(device)) => view! { <DeviceWords shared=shared device=device/> }.into_any(),
        Some(Err(fault)) => view! {
            <FaultNotice fault=fault>
                <button type="button" class="button" on:click=move |_| shared.probe()>"Ask again"</button>
            </FaultNotice>
        }
        .into_any(),
    };
    let said = move || match shared.device.get() {
        Some(Ok(device)) => format!("This device: {}", device.name),
        _ => String::new(),
    };
    view! {
        <div>
            {described}
            <p class="visually-hidden" role="status">{said}</p>
        </div>
    }
}

#[component]
fn DeviceWords(shared: Shared, device: Device) -> impl IntoView {
    let name = if device.detail.is_empty() { device.name.clone() } else { format!("{} ({})", device.name, device.detail) };
    let plain = format!("Holds up to {} in one piece. {}", format::limit(device.max_buffer), tier_words(&device.tier));
    let asked = web_sys::window().and_then(|window| window.location().search().ok()).is_some_and(|search| search.contains("selftest"));
    let pace = if device.software {
        "This is a software renderer, not a graphics card: everything works, slowly. A model below 200 MB is advisable."
    } else {
        "Models that fit its memory run at full speed."
    };
    view! {
        <details class="device" open=asked>
            <summary><span class=if device.software { "dot slow" } else { "dot good" } aria-hidden="true"></span><span>"This device: "<strong>{name}</strong></span></summary>
            <dl class="facts">
                <div><dt>"Largest buffer"</dt><dd>{format::limit(device.max_buffer)}</dd></div>
                <div><dt>"Largest binding"</dt><dd>{format::limit(device.max_binding)}</dd></div>
                <div><dt>"Threads a group"</dt><dd>{format::thousands(device.max_invocations)}</dd></div>
                <div><dt>"Shared memory"</dt><dd>{format::limit(f64::from(device.workgroup_memory))}</dd></div>
                <div><dt>"Tier"</dt><dd>{device.tier.clone()}</dd></div>
                <div><dt>"Driver"</dt><dd>"browsers do not tell"</dd></div>
                <div><dt>"16-bit floats"</dt><dd>{if device.f16 { "yes" } else { "no, not needed" }}</dd></div>
            </dl>
            <p class="soft">"Tensors larger than a binding are split by rows, so these limits slow a model down at most. Only memory can rule it out."</p>
            <super::selftest::SelfTest shared=shared/>
        </details>
        <p class="soft" id="device-words">{pace}" "{plain}</p>
    }
}

/// What a tier means for the answers.
fn tier_words(tier: &str) -> &'static str {
    match tier {
        "fast" => {
            "Models are read in the fast tier: what is multiplied is rounded to 8 bits first, as other programs do, too. That is quicker and moves the probabilities a little."
        }
        "tensor" => {
            "Models are read in the tensor tier: what is multiplied is rounded to 16 bits first, on the units that the GPU has for it."
        }
        _ => "Models are read in the exact tier: everything is computed in 32-bit numbers.",
    }
}

#[component]
fn ModelLine(model: Model, way: RwSignal<Option<Loading>>, changing: RwSignal<bool>) -> impl IntoView {
    let facts = format!(
        "{} · {} layers · {} file · {} on the GPU · {} tier",
        model.architecture,
        model.layers,
        format::bytes(model.bytes),
        format::bytes(model.gpu_bytes),
        model.precision
    );
    // The same clock as in the details: what a person waited.
    let took = move || {
        way.get().map(|way| {
            view! {
                <p class="soft">{way.summary()}</p>
                <details class="soft definitions" id="load-times">
                    <summary>"How long each step took"</summary>
                    <dl class="facts">
                        {way.times().into_iter().map(|(title, words)| view! { <div><dt>{title}</dt><dd>{words}</dd></div> }).collect_view()}
                    </dl>
                </details>
            }
        })
    };
    view! {
        <div class="loaded" id="loaded">
            <div>
                <p class="loaded-name">{model.name}</p>
                <p class="soft">{facts}</p>
                {took}
            </div>
            <button type="button" class="button quiet" aria-expanded=move || changing.get().to_string() on:click=move |_| changing.update(|open| *open = !*open)>
                {move || if changing.get() { "Keep this model" } else { "Change model" }}
            </button>
        </div>
    }
}

#[component]
fn Chooser(shared: Shared) -> impl IntoView {
    let url = RwSignal::new(String::new());
    let take = move |files: Vec<File>| choose(shared, Chosen::Files(files));
    let download = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        let address = url.get_untracked().trim().to_string();
        if !address.is_empty() {
            choose(shared, Chosen::Url(address, None));
        }
    };
    let no_gpu = Signal::derive(move || matches!(shared.device.get(), Some(Err(_))));
    view! {
        <div class="chooser">
            <KeptList shared=shared/>
            <super::ladder::LadderList shared=shared choose=move |rung| choose(shared, match rung {
                Rung::Kept(name) => Chosen::Kept(name),
                Rung::Fetch { url, sha256 } => Chosen::Url(url, Some(sha256)),
            })/>
            <div class="ways">
                <DropPlace disabled=no_gpu take=take>
                    <FileButton id="file" title="Choose a GGUF file" accept=".gguf" class="button strong" multiple=true disabled=no_gpu take=take/>
                    <p class="soft">"or drop it here, all parts together where it is split. It is copied into this browser's storage and stays on this device."</p>
                </DropPlace>
                <form class="address" on:submit=download>
                    <label for="url">"Or download from an address"</label>
                    <div class="row">
                        <input id="url" type="url" inputmode="url" autocomplete="off" spellcheck="false" placeholder="https://…/model.gguf" bind:value=url/>
                        <button type="submit" class="button" disabled=move || no_gpu.get() || url.with(|url| url.trim().is_empty())>"Download"</button>
                    </div>
                    <p class="soft">"An interrupted download goes on where it stopped. Nothing is fetched before you press the button."</p>
                </form>
            </div>
        </div>
    }
}

#[component]
fn KeptList(shared: Shared) -> impl IntoView {
    let none = move || shared.kept.with(|kept| kept.files.is_empty());
    let room = move || shared.kept.with(storage_words);
    view! {
        <Show when=move || !none()>
            <div class="kept">
                <h3>"Kept in this browser"</h3>
                <ul id="kept">
                    <For each=move || shared.kept.get().files key=|file| (file.name.clone(), file.stored as u64, file.bytes as u64) let:file>
                        <KeptRow shared=shared file=file/>
                    </For>
                </ul>
            </div>
        </Show>
        <p class="soft" id="storage">{room}</p>
    }
}

/// What will be stored where, and for how long.
fn storage_words(kept: &Kept) -> String {
    if !kept.available {
        return "This browser gives the page no file storage, as in some private windows: models are used without being kept.".into();
    }
    let room = if kept.quota > 0.0 {
        format!(", {} used of {} that it allows", format::bytes(kept.usage), format::bytes(kept.quota))
    } else {
        String::new()
    };
    let stays = if kept.persisted {
        "It has promised to keep them until you delete them."
    } else {
        "It has not promised to keep them: it may clear them when space runs low, and a private window when it is closed."
    };
    format!("Models are stored in this browser, on this device, for this page alone{room}. {stays}")
}

#[component]
fn KeptRow(shared: Shared, file: KeptFile) -> impl IntoView {
    let complete = file.complete();
    let size = match (complete, file.bytes > 0.0) {
        (true, _) => format::bytes(file.bytes),
        (false, true) => format!("{} of {}, not complete", format::bytes(file.stored), format::bytes(file.bytes)),
        (false, false) => format!("{}, not complete", format::bytes(file.stored)),
    };
    let (name, url) = (file.name.clone(), file.url.clone());
    let (use_name, delete_name) = (file.name.clone(), file.name.clone());
    let no_gpu = move || matches!(shared.device.get(), Some(Err(_)));
    let delete = move |_| {
        let name = delete_name.clone();
        spawn_local(async move {
            match shared.call(Command::Delete { name }).answer().await {
                Ok(Answer::Kept(kept)) => shared.kept.set(kept),
                Ok(_) => {}
                Err(fault) => shared.fault.set(Some(fault)),
            }
        });
    };
    let action = if complete {
        let choice = move |_| choose(shared, Chosen::Kept(use_name.clone()));
        view! { <button type="button" class="button strong" aria-label=format!("Use {name}") disabled=no_gpu on:click=choice>"Use"</button> }.into_any()
    } else if !url.is_empty() {
        let resume = move |_| choose(shared, Chosen::Url(url.clone(), None));
        view! { <button type="button" class="button" aria-label=format!("Go on with {name}") disabled=no_gpu on:click=resume>"Go on"</button> }.into_any()
    } else {
        ().into_any()
    };
    view! {
        <li>
            <span class="kept-name">{file.name.clone()}</span>
            <span class="kept-size">{size}</span>
            <span class="row">
                {action}
                <button type="button" class="button quiet" aria-label=format!("Delete {name}") on:click=delete>"Delete"</button>
            </span>
        </li>
    }
}

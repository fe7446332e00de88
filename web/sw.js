// Makes the page itself work without a network. Models are kept by the page, not here.
//
// All files of one version are fetched together and kept as one set, from which alone they are answered, so that an update never mixes two.
// A new version is fetched beside the old one and takes its place when no tab shows that any more, or when the only tab is loaded again.
// scripts/stamp-sw writes the version; without one nothing is kept.
const VERSION = '';
const CACHE = `semif-page-${VERSION}`;
const FILES = ['./', 'style.css', 'icon.svg', 'boot.js', 'app_loader.js', 'app.js', 'app_bg.wasm', 'worker_loader.js', 'worker.js', 'worker_bg.wasm'];

self.addEventListener('install', (event) => {
  if (VERSION) event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(FILES.map((file) => new Request(file, { cache: 'no-cache' })))));
});

self.addEventListener('activate', (event) => event.waitUntil((async () => {
  const old = (await caches.keys()).filter((name) => name.startsWith('semif-page') && name !== CACHE);
  await Promise.all(old.map((name) => caches.delete(name)));
  await self.clients.claim();
})()));

self.addEventListener('message', (event) => { if (event.data === 'take over') self.skipWaiting(); });

self.addEventListener('fetch', (event) => {
  const { request } = event;
  const url = new URL(request.url);
  const home = new URL('./', location);
  const name = url.pathname.slice(home.pathname.length) || './';
  const ours = url.origin === home.origin && url.pathname.startsWith(home.pathname) && FILES.includes(name === 'index.html' ? './' : name);
  if (!VERSION || request.method !== 'GET' || !ours) return;
  event.respondWith((async () => {
    if (request.mode === 'navigate' && registration.waiting && (await self.clients.matchAll()).length < 2) {
      registration.waiting.postMessage('take over');
      return new Response('', { headers: { Refresh: '0' } });
    }
    const kept = await caches.match(name === 'index.html' ? './' : name, { cacheName: CACHE });
    return kept ?? fetch(request);
  })());
});

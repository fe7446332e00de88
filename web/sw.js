// Makes the page itself work without a network. Models are kept by the page, not here.
const CACHE = 'semif-page';

self.addEventListener('install', () => self.skipWaiting());
self.addEventListener('activate', (event) => event.waitUntil(self.clients.claim()));

// The network first, so that a new version shows at once; what was seen last when there is none.
self.addEventListener('fetch', (event) => {
  const { request } = event;
  const url = new URL(request.url);
  const ours = url.origin === location.origin && url.pathname.startsWith(new URL('./', location).pathname);
  if (request.method !== 'GET' || !ours || request.headers.has('range') || url.pathname.endsWith('.gguf')) return;
  event.respondWith((async () => {
    const cache = await caches.open(CACHE);
    try {
      const response = await fetch(request);
      if (response.ok && response.type === 'basic') await cache.put(request, response.clone());
      return response;
    } catch (error) {
      const kept = await cache.match(request, { ignoreSearch: request.mode === 'navigate' });
      if (kept) return kept;
      throw error;
    }
  })());
});

/** Calls `fn` once things have been quiet for `waitMs` milliseconds. */
export function debounce<A extends unknown[]>(fn: (...args: A) => void, waitMs: number) {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const debounced = (...args: A): void => {
    if (timer !== undefined) clearTimeout(timer);
    timer = setTimeout(() => {
      timer = undefined;
      fn(...args);
    }, waitMs);
  };
  debounced.cancel = () => {
    if (timer !== undefined) clearTimeout(timer);
    timer = undefined;
  };
  return debounced;
}

interface SearchResult {
  id: number;
  title: string;
  tags?: readonly string[];
}

export async function search(query: string, signal?: AbortSignal): Promise<SearchResult[]> {
  const response = await fetch(`/api/search?q=${encodeURIComponent(query)}`, { signal });
  if (!response.ok) {
    throw new Error(`search failed: ${response.status} ${response.statusText}`);
  }
  const { results } = (await response.json()) as { results: SearchResult[] };
  return results.filter((result) => result.title.length > 0).sort((a, b) => a.id - b.id);
}

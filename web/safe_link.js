// Which addresses of a model's text may become links: whole http and https addresses that say where they lead.
const MAX_LENGTH = 2048;

// The address as the browser reads it, or null.
export function linkOf(text) {
  if (text.length > MAX_LENGTH || !/^https?:\/\/[^/\\]/i.test(text)) return null;
  // Characters that no one sees, or that turn the direction of writing, hide where a link leads.
  if (/[\p{C}\p{Z}\\]/u.test(text)) return null;
  let url;
  try {
    url = new URL(text);
  } catch {
    return null;
  }
  const isWeb = url.protocol === "http:" || url.protocol === "https:";
  // A name before @ looks like the host.
  return isWeb && url.username === "" && url.password === "" ? url.href : null;
}

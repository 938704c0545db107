{{- define "wattherd.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "wattherd.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "wattherd.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "wattherd.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Cluster-wide objects: two releases of one name in two namespaces must not share them. */ -}}
{{- define "wattherd.clusterName" -}}
{{- if eq .Release.Namespace "kube-system" -}}
{{- include "wattherd.fullname" . -}}
{{- else -}}
{{- printf "%s-%s" .Release.Namespace (include "wattherd.fullname" .) -}}
{{- end -}}
{{- end -}}

{{- define "wattherd.account" -}}
{{- default (include "wattherd.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "wattherd.selector" -}}
app.kubernetes.io/name: {{ include "wattherd.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "wattherd.labels" -}}
{{ include "wattherd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: {{ .Values.mode }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* A container's image: digest before tag before what is usual. */ -}}
{{- define "wattherd.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default (index . 1) $image.tag }}
{{- end -}}
{{- end -}}

{{- define "wattherd.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* How many copies: an extender's reservations are in one memory, so that of it there is one. */ -}}
{{- define "wattherd.replicas" -}}
{{- if eq .Values.mode "extender" }}1{{ else }}{{ .Values.scheduler.replicas }}{{ end -}}
{{- end -}}

{{- define "wattherd.sidecar" -}}
{{- if and (eq .Values.mode "extender") .Values.extender.kubeScheduler.enabled }}true{{ end -}}
{{- end -}}

{{- define "wattherd.served" -}}
{{- if and (eq .Values.mode "extender") (not .Values.extender.kubeScheduler.enabled) }}true{{ end -}}
{{- end -}}

{{- define "wattherd.agent" -}}
{{- printf "%s-agent" (include "wattherd.fullname" .) -}}
{{- end -}}

{{- /* Not the labels of the release's other pods, which its selectors would take for copies. */ -}}
{{- define "wattherd.agentSelector" -}}
app.kubernetes.io/name: {{ include "wattherd.name" . }}-agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "wattherd.agentLabels" -}}
{{ include "wattherd.agentSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: agent
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* The right to write what begins with wattherd.dev/ on pods and jobs: admission policies ask for it. */}}
{{- define "wattherd.decisionRights" }}
- apiGroups: [wattherd.dev]
  resources: [decisions]
  verbs: [write]
{{- end }}

{{- /* Rights to power domains and budgets, which every mode reads and tells of. */ -}}
{{- define "wattherd.powerRights" }}
- apiGroups: [wattherd.dev]
  resources: [powerdomains, powerbudgets]
  verbs: [get, list, watch]
- apiGroups: [wattherd.dev]
  resources: [powerdomains/status, powerbudgets/status]
  verbs: [patch]
{{- end }}

{{- /* Which GPUs resource claims of other drivers hold, where there are any. */ -}}
{{- define "wattherd.claimRights" }}
- apiGroups: [resource.k8s.io]
  resources: [resourceslices, resourceclaims]
  verbs: [get, list, watch]
{{- end }}

{{- /* Rights to queues, in modes that keep to them. */ -}}
{{- define "wattherd.queueRights" }}
- apiGroups: [wattherd.dev]
  resources: [queues]
  verbs: [get, list, watch]
- apiGroups: [wattherd.dev]
  resources: [queues/status]
  verbs: [patch]
{{- end }}

{{- /* Rights to sets that say how many of their pods start together, and are not suspended. */ -}}
{{- define "wattherd.setRights" }}
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]
  verbs: [get, list, watch]
{{- end }}

{{- /* Rights to what owns pods, to suspend it where there are too few watts and let it run again. */ -}}
{{- define "wattherd.jobRights" }}
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, patch]
- apiGroups: [jobset.x-k8s.io]
  resources: [jobsets]
  verbs: [get, list, watch, patch]
- apiGroups: [trainer.kubeflow.org]
  resources: [trainjobs]
  verbs: [get, list, watch, patch]
- apiGroups: [kubeflow.org]
  resources: [pytorchjobs, mpijobs]
  verbs: [get, list, watch, patch]
- apiGroups: [ray.io]
  resources: [rayjobs, rayclusters]
  verbs: [get, list, watch, patch]
- apiGroups: [workload.codeflare.dev]
  resources: [appwrappers]
  verbs: [get, list, watch, patch]
{{- end }}

{{- define "wattherd.pools" -}}
{{- printf "%s-pools" (include "wattherd.fullname" .) -}}
{{- end -}}

{{- define "wattherd.poolsSelector" -}}
app.kubernetes.io/name: {{ include "wattherd.name" . }}-pools
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "wattherd.poolsLabels" -}}
{{ include "wattherd.poolsSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: pools
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* Egress to where PowerBudgets with a `signal` listen; by name, where addresses have one. */ -}}
{{- define "wattherd.signalEgress" -}}
- ports:
  {{- range .Values.signals.ports }}
  - {port: {{ . }}, protocol: TCP}
  {{- end }}
  {{- with .Values.signals.cidrs }}
  to:
  {{- range . }}
  - ipBlock: {cidr: {{ . }}}
  {{- end }}
  {{- end }}
{{- end -}}

{{- define "wattherd.nameEgress" -}}
- ports:
  - {port: 53, protocol: UDP}
  - {port: 53, protocol: TCP}
{{- end -}}

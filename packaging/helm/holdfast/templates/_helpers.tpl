{{/* The name of every object: that of the release, with the chart's name if it lacks it. */}}
{{- define "holdfast.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The labels that select the broker's pod. They never change. */}}
{{- define "holdfast.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "holdfast.labels" -}}
{{ include "holdfast.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The host names by which pods of the cluster reach the broker, and those of the values. */}}
{{- define "holdfast.hosts" -}}
{{- $name := include "holdfast.name" . -}}
{{- $space := .Release.Namespace -}}
{{- $own := list $name (printf "%s.%s" $name $space) (printf "%s.%s.svc" $name $space) -}}
{{- $own = append $own (printf ".%s.%s.svc.cluster.local" $name $space) -}}
{{- $own = append $own (printf "%s.%s.svc.cluster.local" $name $space) -}}
{{- concat $own .Values.access.allowedHosts | join "," -}}
{{- end -}}
